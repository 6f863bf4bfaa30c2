package jsonfinder

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A jsonLoad is a body for benchmarks.
type jsonLoad struct {
	name, paths string
	events      bool
	body        string
	want        int64
}

const openAIPaths = "usage.prompt_tokens+usage.completion_tokens"

func jsonLoads() []jsonLoad {
	completion := func(text string) string {
		return `{"id":"chatcmpl-9","object":"chat.completion","created":1,"model":"gpt-4o","choices":[{"index":0,"message":{"role":"assistant","content":"` +
			strings.Repeat(text, 128<<10/len(text)) +
			`","refusal":null},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":12,"completion_tokens":15988,"total_tokens":16000}}`
	}
	prose := strings.Repeat("The quick brown fox jumps over the lazy dog, and so on. ", 7) + `\"Well\", said the [dog](url).\n\n`
	quotes := `The quick brown \"fox\" jumps over the [lazy](dog), {and} so on.\n\n`
	arguments := `{\"location\":{\"city\":\"Paris\",\"country\":\"FR\"},\"units\":\"celsius\",\"days\":3},\n`
	return []jsonLoad{
		{"prose", openAIPaths, false, completion(prose), 16000},
		{"quotes", openAIPaths, false, completion(quotes), 16000},
		{"arguments", openAIPaths, false, completion(arguments), 16000},
		{"numbers", "usage.total_tokens", false, embeddings(8, 1536), 8000},
		{"objects", "meta.cost", false, smallObjects(2000), 7},
		{"sse", openAIPaths, true, completionEvents(700, " word%d"), 1000},
		{"sse-escapes", openAIPaths, true, completionEvents(700, `\u00e9\n%d`), 1000},
		{"graphql", "extensions.cost.actualQueryCost", false, products(400), 992},
		{"nested", "meta.cost", false, nestedObjects(1000), 7},
	}
}

func embeddings(n, dimensions int) string {
	var b strings.Builder
	b.WriteString(`{"object":"list","data":[`)
	for i := range n {
		fmt.Fprintf(&b, `{"object":"embedding","index":%d,"embedding":[0.5`, i)
		for k := range dimensions {
			fmt.Fprintf(&b, ",-0.0%06d", k*7919%1000000)
		}
		b.WriteString("]},")
	}
	return strings.TrimSuffix(b.String(), ",") + `],"model":"text-embedding-3-small","usage":{"prompt_tokens":8000,"total_tokens":8000}}`
}

func smallObjects(n int) string {
	var b strings.Builder
	b.WriteString(`{"data":[`)
	for i := range n {
		fmt.Fprintf(&b, `{"id":%d,"name":"item %d","price":%d.99,"stock":{"de":%d},"ok":true},`, i, i, i, i%7)
	}
	return strings.TrimSuffix(b.String(), ",") + `],"meta":{"cost":7}}`
}

func completionEvents(n int, text string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "data: {\"id\":\"chatcmpl-9\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"gpt-4o\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\""+
			text+"\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n", i)
	}
	b.WriteString("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":12,\"completion_tokens\":988,\"total_tokens\":1000}}\n\ndata: [DONE]\n\n")
	return b.String()
}

func products(n int) string {
	var b strings.Builder
	b.WriteString(`{"data":{"products":{"edges":[`)
	for i := range n {
		fmt.Fprintf(&b, `{"cursor":"eyJsYXN0X2lkIjo%d","node":{"id":"gid://shopify/Product/%d","title":"Product %d","tags":["a","b"],"variants":{"edges":[`+
			`{"node":{"id":"gid://shopify/ProductVariant/%d","price":{"amount":"%d.50","currencyCode":"EUR"},"available":true}}]}}},`, i, i, i, i, i)
	}
	return strings.TrimSuffix(b.String(), ",") + `],"pageInfo":{"hasNextPage":true}}},"extensions":{"cost":{"requestedQueryCost":1002,"actualQueryCost":992,"throttleStatus":{"currentlyAvailable":8}}}}`
}

// nestedObjects is the worst of what is usual: nothing but objects within an object.
func nestedObjects(n int) string {
	var b strings.Builder
	b.WriteString(`{"data":{`)
	for i := range n {
		fmt.Fprintf(&b, `"item%d":{"id":"%d","owner":{"login":"user%d","plan":{"name":"pro"}},"count":{"total":%d}},`, i, i, i, i)
	}
	return strings.TrimSuffix(b.String(), ",") + `},"meta":{"cost":7}}`
}

func TestJSONFinderLoads(t *testing.T) {
	for _, l := range jsonLoads() {
		for size := 0; size < 3000; size += 59 {
			pieces := append([]string{l.body[:size]}, cutJSON(l.body[size:], 32<<10)...)
			require.Equal(t, l.want, findJSON(t, l.paths, l.events, pieces...), l.name)
		}
	}
}
