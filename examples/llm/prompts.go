package main

import (
	"math/rand/v2"
	"strings"
)

// A prompt is a text for the model, and how long its answer may be.
type prompt struct {
	kind      string
	text      string
	maxTokens int64
	stream    bool
}

// A kind of prompts.
type kind struct {
	name        string
	least, most int // words
	letters     int // of a word, on average
	maxTokens   int64
}

var (
	question = kind{"question", 20, 80, 5, 600}
	code     = kind{"code", 200, 600, 2, 700} // more tokens than its length lets one think
	summary  = kind{"summary", 500, 1500, 5, 600}
	document = kind{"document", 2000, 5000, 5, 1000}
	book     = kind{"book", 8500, 8501, 5, 20_000}
)

// prompts returns n of them, most of them short, and a book in their midst.
func prompts(n int, seed uint64) []prompt {
	rng := rand.New(rand.NewPCG(seed, 0))
	often := []kind{question, question, question, question, question, code, code, summary, summary, document}
	all := make([]prompt, n)
	for i := range all {
		k := often[rng.IntN(len(often))]
		if i == n/2 {
			k = book
		}
		all[i] = prompt{k.name, k.text(rng), k.maxTokens, rng.IntN(2) == 0}
	}
	return all
}

func (k *kind) text(rng *rand.Rand) string {
	var b strings.Builder
	for range k.least + rng.IntN(k.most-k.least) {
		for range 1 + rng.IntN(2*k.letters-1) {
			b.WriteByte(byte('a' + rng.IntN(26)))
		}
		b.WriteByte(' ')
	}
	return b.String()
}
