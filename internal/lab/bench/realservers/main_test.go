package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSectionIsReplacedOrPutWhereItBelongs(t *testing.T) {
	for page, want := range map[string]string{
		"a\n\n" + head + "\nold\n\n## Time until\nb\n": "a\n\n" + head + "\nnew\n\n## Time until\nb\n",
		"a\n\n## Time until\nb\n":                      "a\n\n" + head + "\nnew\n\n## Time until\nb\n",
	} {
		file := filepath.Join(t.TempDir(), "page.md")
		if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := replace(file, head+"\nnew\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(file); err != nil || string(got) != want {
			t.Errorf("%q, want %q; %v", got, want, err)
		}
	}
}
