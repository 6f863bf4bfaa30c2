package jsonfinder

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A jsonCase is a body and what is found in it; want < 0: nothing. Between paths is a plus.
type jsonCase struct {
	name, paths, body string
	events            bool
	want              int64
}

// mostPaths has each of the letters up to p below a.
const mostPaths = "a.a+a.b+a.c+a.d+a.e+a.f+a.g+a.h|a.i|a.j+a.k+a.l+a.m+a.n+a.o+a.p"

func formOf(events bool) Form {
	if events {
		return Events
	}
	return JSON
}

// none is wanted where there is no number.
const none = -1

func jsonCases() []jsonCase {
	const path = "usage.total_tokens"
	deep := strings.Repeat(`{"a":[`, 5000) + strings.Repeat(`]}`, 5000)
	long := strings.Repeat("n", maxName)
	dense := "[" + strings.Repeat(`[[1,[[[[2]]]]],{"a":{"b":{},"c":{"d":{"e":"}}}{"}}},"][":"\\\""}],`, 9) + `{"a":{"b":{"c":{"d":{"e":{"f":{}},"g":"{"}}}}}}]`
	quotes := strings.Repeat(`{\"a\":[\"b\\\"\\\\\",{\"c\":\"\"}}]`, 20)
	number := func(text string, want int64) jsonCase {
		return jsonCase{"number " + text[:min(len(text), 40)], "n", `{"n":` + text + `}`, false, want}
	}
	cases := []jsonCase{
		{"plain", path, `{"usage":{"prompt_tokens":1,"total_tokens":12,"other":3}}`, false, 12},
		{"spaces everywhere", path, " \t\r\n{ \"usage\"\n:\r{\t\"total_tokens\" : 12 } } ", false, 12},
		{"one name", "n", `{"m":1,"n":2,"o":3}`, false, 2},
		{"the most names", strings.Repeat("a.", maxNames-1) + "a", strings.Repeat(`{"a":`, maxNames) + "5" + strings.Repeat("}", maxNames), false, 5},
		{"deeper than the path", path, `{"usage":{"total_tokens":{"total_tokens":1}}}`, false, none},
		{"less deep", path, `{"total_tokens":1,"usage":2}`, false, none},
		{"the same names elsewhere", path, `{"x":{"usage":{"total_tokens":1}},"usage":{"usage":{"total_tokens":2},"x":{"total_tokens":3}}}`, false, none},
		{"after nested objects", path, `{"x":{"y":{}},"usage":{"x":{"y":{"z":[{}]}},"total_tokens":4},"z":{"total_tokens":5}}`, false, 4},
		{"prefix of a name", "total", `{"tot":1,"totals":2,"to":3,"":4}`, false, none},
		{"arrays are not entered", path, `{"usage":[{"total_tokens":1}]}`, false, none},
		{"the root is an array", path, `[{"usage":{"total_tokens":1}}]`, false, 1},
		{"elements of the root", "n", " [ {\"n\":1},\n{\"m\":[{\"n\":7}]} , {\"n\":2}\r\n,3,null,[{\"n\":8}]\n]\n", false, 2},
		{"arrays at the root", "n", `[{"n":1}][[{"n":2}],"n"][]{"m":3}`, false, 1},
		{"an array that is cut", "n", `[{"n":1},{"n":2`, false, 1},
		{"brackets and quotes in strings", path, `{"a":["]}\"]","\\",{"]":"}"}],"b":{"}":"{\\\"}"},"usage":{"x":"\"}\\","total_tokens":6}}`, false, 6},
		{"depth", path, `{"x":` + deep + `,"usage":{"total_tokens":7}}`, false, 7},
		{"literals", path, `{"a":true,"b":false,"c":null,"d":-1.5E+7,"usage":{"total_tokens":8}}`, false, 8},
		{"empty", path, ``, false, none},
		{"empty objects", path, `{}{"usage":{}}`, false, none},

		{"null", path, `{"usage":null}{"usage":{"total_tokens":null}}`, false, none},
		{"a string", path, `{"usage":{"total_tokens":"5"}}`, false, none},
		{"an object, an array", path, `{"usage":{"total_tokens":{}}}{"usage":{"total_tokens":[5]}}`, false, none},
		{"what is none leaves what was found", "n", `{"n":1,"n":null,"n":"2","n":-3,"n":1e99,"n":{},"n":[4]}`, false, 1},
		{"the last counts", path, `{"usage":{"total_tokens":1,"total_tokens":2},"usage":{"total_tokens":3}}`, false, 3},
		{"an object without it leaves what was found", path, `{"usage":{"total_tokens":1},"usage":{}}`, false, 1},

		{"escaped name", path, `{"\u0075s\u0061ge":{"total\u005Ftoken\u0073":9}}`, false, 9},
		{"escapes of a name", "a\"\\/\b\f\n\r\t", `{"a\"\\\/\b\f\n\r\t":5}`, false, 5},
		{"escape that means another", "name", `{"n\u0061mes":1,"n\u0062me":2,"\name":3}`, false, none},
		{"pair of surrogates", "x\U0001F600y", `{"x\ud83d\ude00y":5}`, false, 5},
		{"raw as well", "x\U0001F600y", "{\"x\U0001F600y\":5}", false, 5},
		{"half pairs", "\uFFFDa\uFFFD\n\uFFFD\U0001F600\uFFFD", `{"\ud83da\ude00\n\ud83d\ud83d\ude00\ud83d":5}`, false, 5},
		{"bad escape", "n", `{"\x":1,"n":2}`, false, none},
		{"bad hexadecimal", "n", `{"\u00g0":1,"n":2}`, false, none},
		{"longest name", long, `{"` + long + `":5}`, false, 5},
		{"too long a name", long, `{"` + long + `n":5}`, false, none},
		{"much longer than the path", "n", `{"` + strings.Repeat("n", 5000) + `":4,"n":5}`, false, 5},

		{"lines", "n", "{\"n\":1}\n{\"n\":2}\r\n\n{\"m\":3}\n", false, 2},
		{"one after the other", "n", `{"n":1}[{"n":9}]"n"7 true{"n":2}null`, false, 2},
		{"no end", "n", `{"n":1`, false, none},
		{"no end after space", "n", `{"n":1 `, false, 1},
		{"a bare number", "n", `5`, false, none},
		{"byte order mark", "n", "\uFEFF{\"n\":5}", false, 5},

		{"malformed keeps what was found", "n", `{"n":1,"m"}{"n":2}`, false, 1},
		{"malformed line", "n", "{\"n\":1,]}\n{\"n\":2}\n", false, 2},
		{"not JSON at all", "n", "<html>{\"n\":1}\nError: {\"n\":2}\n", false, none},
		{"line cut in a string", "n", "{\"m\":\"ab\n{\"n\":2}\n", false, 2},
		{"line cut in a nested string", "n", "{\"m\":[{\"a\":\"ab\n{\"n\":2}\n", false, 2},
		{"line cut after a backslash", "n", "{\"m\":\"ab\\\n{\"n\":2}\n", false, 2},
		{"line cut in a name", "n", "{\"m\n{\"n\":2}\n", false, 2},
		{"line cut in an escape", "n", "{\"m\\\n{\"n\":2}\n", false, 2},
		{"line cut on the path", "n", "{\"m\":\n[],{\n{\"n\":2}\n", false, 2},
		{"backslash between values", "n", "{\"m\":[1,\\\"],\"n\":1}\n{\"n\":2}", false, 2},
		{"missing comma", "n", `{"m":1 "n":2}`, false, none},
		{"missing colon", "n", `{"m":1,"n" 2}`, false, none},
		{"comma at the end", "n", `{"m":1,}{"n":2}`, false, none},
		{"comma at the start", "n", `{,"n":2}`, false, none},
		{"comma between values", "n", `{"n":1},{"n":2}`, false, 1},
		{"too many braces", "n", `{"n":1}}{"n":2}`, false, 1},
		{"wrong bracket", "n", `{"n":1]`, false, none},

		{"OpenAI", path, openAIStream, true, 21},
		{"OpenAI, asked for the part", "usage.completion_tokens", openAIStream, true, 9},
		{"OpenAI, CRLF", path, strings.ReplaceAll(openAIStream, "\n", "\r\n"), true, 21},
		{"OpenAI, CR", path, strings.ReplaceAll(openAIStream, "\n", "\r"), true, 21},
		{"Anthropic, at the start", "message.usage.input_tokens", anthropicStream, true, 25},
		{"Anthropic, at the start, out", "message.usage.output_tokens", anthropicStream, true, 1},
		{"Anthropic, at the end", "usage.output_tokens", anthropicStream, true, 15},
		{"Anthropic, CRLF", "usage.output_tokens", strings.ReplaceAll(anthropicStream, "\n", "\r\n"), true, 15},
		{"without a space", "n", "data:{\"n\":5}\n\n", true, 5},
		{"two spaces", "n", "data:  {\"n\":5}\n\n", true, 5},
		{"data over several lines", "a.n", "data: {\"a\":\nid: 7\ndata:{\ndata\ndata:\n: ping\ndata: \"n\"\ndata::5\ndata:}}\n\n", true, 5},
		{"a line ends a number", "n", "data: {\"n\":1\ndata: 2}\n\n", true, 1},
		{"other fields", "n", "{\"n\":1}\ndat: {\"n\":2}\ndatas: {\"n\":3}\n: {\"n\":4}\nDATA: {\"n\":5}\n data: {\"n\":6}\nevent:{\"n\":7}\n\n", true, none},
		{"events are documents", "a.n", "data: {\"a\":\n\ndata: {\"n\":5}}\n\n", true, none},
		{"events with a mark", "n", "\uFEFFdata: {\"n\":5}\n\n", true, 5},
		{"events without an end", "n", "data: {\"n\":5}", true, 5},
		{"a malformed event", "n", "data: {\"n\":1}\n\ndata: {\"n\":2,!\ndata: {\"n\":3}\n\ndata: {\"n\":4}\n\n", true, 4},
		{"an event cut in a string", "n", "data: {\"m\":[\"\n\ndata: {\"n\":4}\n\ndata: {\"n\n\n", true, 4},
		{"escaped name in an event", "name", "data: {\"m\":1}\n\ndata: {\"n\\u0061me\":4}\n\ndata: {\"m\":1}\n\n", true, 4},
		{"name with a slash in an event", "a/b", "data: {\"a\\/b\":4}\n\n", true, 4},
		{"empty lines", "n", "\n\n\n\r\n\r\r\rdata: {\"n\":5}\n\n\n\n", true, 5},
		{"mixed line ends", "n", "data: {\"x\":0}\r\n\ndata: {\"x\":\ndata: 0,\"n\":4}\n\rdata: {\"x\":0}\n\r\n", true, 4},

		{"dense brackets", "n", `{"y":` + dense + `,"n":5}`, false, 5},
		{"dense brackets after a cut string", "n", `{"y":{"a":` + dense + `,"x":"` + "\n{\"n\":5}", false, 5},
		{"dense quotes", "n", `{"y":"` + quotes + `","n":5}`, false, 5},
		{"dense quotes in brackets", "n", `{"y":{"z":["` + quotes + `"]},"n":5}`, false, 5},
		{"dense quotes, cut", "n", `{"y":{"z":["` + quotes + "\\\n" + `{"n":5}`, false, 5},
		{"a backslash between dense brackets", "n", `{"y":[` + dense + `,\"` + dense + `],"n":1}` + "\n" + `{"m":5}`, false, none},
		{"deep brackets", "n", `{"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `,"n":5}`, false, 5},

		{"two paths", "usage.in+usage.out", `{"usage":{"in":1,"out":20}}`, false, 21},
		{"of two paths one", "usage.in+usage.out", `{"usage":{"out":20}}`, false, 20},
		{"of each path the last", "a.in+a.out", `{"a":{"in":1,"out":20,"in":2},"a":{"out":30,"in":3}}{"a":{"in":4}}`, false, 34},
		{"of alternatives the last", "a|b", `{"b":1,"a":2}{"b":3}`, false, 3},
		{"alternatives of one of several", "a|b.c+d", `{"a":1,"d":10}{"b":{"c":2}}`, false, 12},
		{"a path that begins with another", "a+a.b", `{"a":1}{"a":{"b":10}}`, false, 11},
		{"an alternative that begins with another", "a.b|a", `{"a":1}{"a":{"b":10}}{"a":2}`, false, 2},
		{"names that begin alike", "to+tot+total", `{"total":100,"to":1,"tot":10,"t":1000,"totals":1000}`, false, 111},
		{"names that end alike", "x.a_n+x.b_n", "data: {\"x\":{\"b_n\":1}}\n\ndata: {}\n\ndata: {\"x\":{\"a_n\":2}}\n\n", true, 3},
		{"names that have nothing in common", "usage+cost", "data: {\"cost\":1}\n\ndata: {}\n\ndata: {\"usage\":2}\n\n", true, 3},
		{"the same name at two levels", "a.a+a.a.a|b.a", `{"a":{"a":1},"a":{"a":{"a":10}},"a":2}`, false, 11},
		{"an escape in one of several", "u.in_t+u.out_t", `{"u":{"in\u005Ft":1,"out\u005ft":10}}`, false, 11},
		{"the sum is too large", "a+b+c", `{"b":9223372036854775807,"a":1,"c":9223372036854775807}`, false, math.MaxInt64},
		{"the sum is the largest", "a+b", `{"b":9223372036854775806,"a":1}`, false, math.MaxInt64},
		{"nothing but zeros", "a+b", `{"b":0}`, false, 0},
		{"the most paths", mostPaths, `{"a":{"a":1,"b":2,"p":3},"b":9}`, false, 6},
		{"Anthropic, in and out", "message.usage.input_tokens|usage.input_tokens+message.usage.output_tokens|usage.output_tokens", anthropicStream, true, 40},
		{"OpenAI, in and out", "usage.prompt_tokens+usage.completion_tokens", openAIStream, true, 21},
		{"escapes of other bytes in an event", "n_t", "data: {\"m\":\"\\u00e9\\u00fg\\u00\"}\n\ndata: {\"n\\u005ft\":5}\n\ndata: \"\\u00e9\"\n\n", true, 5},

		number("0", 0), number("7", 7), number("10", 10), number("007", none), number("00", none), number("01", none),
		number("9223372036854775807", math.MaxInt64), number("9223372036854775808", none), number("9223372036854775806.1", math.MaxInt64),
		number("9223372036854775807.1", none), number("18446744073709551616", none), number("99999999999999999999999", none),
		number("1.5", 2), number("1.0", 1), number("0.0000001", 1), number("0.0", 0), number("1.0000000000000000000000001", 2),
		number("12345678901234567890123e-20", 124), number("9999999999999999999e-1", 1000000000000000000), number("922337203685477580700e-2", math.MaxInt64),
		number("1e3", 1000), number("1E+3", 1000), number("1.5e1", 15), number("1.25e1", 13), number("15e-1", 2), number("0e5", 0), number("0.000e99999999999999999999", 0),
		number("1e18", 1e18), number("1e19", none), number("9.223372036854775807e18", math.MaxInt64),
		number("1e99999999999999999999999999", none), number("1e-99999999999999999999999999", 1),
		number("0."+strings.Repeat("0", 300)+"1e301", 1), number("1"+strings.Repeat("0", 300)+"e-299", 10),
		number("-1", none), number("-0", 0), number("-0.00", 0), number("-0e5", 0), number("-0.5", none), number("-1e-30", none), number("-0.0000000000000000000000001", none),
		number("-", none), number("--0", none), number("-00", none), number("-.0", none), number("0-0", none), number("-9223372036854775808", none),
		number("+1", none), number(".5", none), number("1.", none), number("1.e2", none), number("1e", none), number("1e+", none),
		number("1.5.5", none), number("1e5e5", none), number("1e5.5", none), number("0x10", none), number("1a", none), number("1_000", none),
		number(`1"`, none), number("1]", none), number("1:", none), number("NaN", none), number("1 ", 1), number("1\t", 1),
	}
	return cases
}

const openAIStream = `data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"gpt-4o-mini","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"gpt-4o-mini","choices":[{"index":0,"delta":{"content":"{\"usage\":{\"total_tokens\":1}}\n\u00e9"},"logprobs":null,"finish_reason":null}],"usage":null}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"gpt-4o-mini","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}

data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1,"model":"gpt-4o-mini","choices":[],"usage":{"prompt_tokens":12,"completion_tokens":9,"total_tokens":21,"completion_tokens_details":{"reasoning_tokens":0}}}

data: [DONE]

`

const anthropicStream = `event: message_start
data: {"type": "message_start", "message": {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "stop_reason": null, "usage": {"input_tokens": 25, "output_tokens": 1}}}

event: content_block_start
data: {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}

event: ping
data: {"type": "ping"}

event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}

event: message_delta
data: {"type": "message_delta", "delta": {"stop_reason": null}, "usage": {"output_tokens": 14}}

event: message_delta
data: {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence":null}, "usage": {"output_tokens": 15}}

event: message_stop
data: {"type": "message_stop"}

`

// compileJSON takes paths with a plus between them.
func compileJSON(paths string) (*Paths, error) { return Compile(strings.Split(paths, "+")) }

func newTestJSONFinder(t testing.TB, paths string, events bool) *Finder {
	t.Helper()
	f, err := New(strings.Split(paths, "+"), formOf(events))
	require.NoError(t, err)
	return f
}

// findJSON returns what is found in a body that comes in pieces, or none. Each is overwritten once it was observed.
func findJSON(t testing.TB, paths string, events bool, pieces ...string) int64 {
	t.Helper()
	return observeJSON(newTestJSONFinder(t, paths, events), pieces...)
}

func observeJSON(f *Finder, pieces ...string) int64 {
	for _, piece := range pieces {
		b := []byte(piece)
		f.Observe(b)
		copy(b, bytes.Repeat([]byte{'"'}, len(b)))
	}
	n, ok := f.Sum()
	if !ok {
		return none
	}
	return n
}

func TestJSONFinderFindsTheLastNumber(t *testing.T) {
	for _, c := range jsonCases() {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, findJSON(t, c.paths, c.events, c.body))
		})
	}
}

func TestJSONFinderDoesntMindHowABodyIsCut(t *testing.T) {
	for _, c := range jsonCases() {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.want, findJSON(t, c.paths, c.events, strings.Split(c.body, "")...), "runes")
			one := newTestJSONFinder(t, c.paths, c.events)
			for i := range len(c.body) {
				one.Observe([]byte{c.body[i]})
			}
			n, ok := one.Sum()
			require.Equal(t, c.want >= 0, ok, "bytes")
			require.Equal(t, max(c.want, 0), n, "bytes")
			step := 1 + len(c.body)/500
			for i := 0; i <= len(c.body); i += step {
				require.Equal(t, c.want, findJSON(t, c.paths, c.events, c.body[:i], c.body[i:]), "cut at %d", i)
			}
			for size := 2; size < min(len(c.body), 20); size++ {
				var pieces []string
				for i := 0; i < len(c.body); i += size {
					pieces = append(pieces, c.body[i:min(i+size, len(c.body))])
				}
				require.Equal(t, c.want, findJSON(t, c.paths, c.events, pieces...), "cut each %d", size)
			}
		})
	}
}

// The first of the body are found before the rest is there.
func TestJSONFinderFindsWhileTheBodyStreams(t *testing.T) {
	f := newTestJSONFinder(t, "usage.output_tokens", true)
	var seen []int64
	for i := range len(anthropicStream) {
		f.Observe([]byte(anthropicStream[i : i+1]))
		if n, ok := f.Sum(); ok && (len(seen) == 0 || seen[len(seen)-1] != n) {
			seen = append(seen, n)
		}
	}
	assert.Equal(t, []int64{14, 15}, seen)
}

func TestJSONFinderDoesntAllocate(t *testing.T) {
	for _, c := range jsonCases() {
		f, body := newTestJSONFinder(t, c.paths, c.events), []byte(c.body)
		require.Zero(t, testing.AllocsPerRun(10, func() {
			for i := 0; i < len(body); i += 100 {
				f.Observe(body[i:min(i+100, len(body))])
			}
			f.Sum()
		}), c.name)
	}
}

// No body makes it look at the same bytes again and again: what is worst for it takes a time that grows with its length.
// The time is not tested: one that grew with the square would be minutes.
func TestJSONFinderTakesLinearTime(t *testing.T) {
	const size = 1 << 20
	for _, part := range []string{
		"[", `{"a":`, `{"a":{`, "[]", `["`, `\`, `"\`, `"\\`, "\"\n", "\n", "x\n", `{"n":[\`, `{"n":0`, `{"n":[`,
		"data: {\"n\":5}\n\n", "data: {}\r\r", "data: \\u\n\n", "data: [\r\n\r\n", "data:\r", "\r", "\n\r", "data: n\n\n", "n\"\n", "\\u\n",
		"{}", "[{}]", `{"":{}}`, `{"n":{"":"\""}}`, `\"`, `\\"`, `"",`, "\"\\\\\"",
	} {
		body := []byte(strings.Repeat(part, size/len(part)))
		newTestJSONFinder(t, "n", false).Observe(body)
		newTestJSONFinder(t, "n", true).Observe(body)
		start := []byte(`{"a":["`)
		f := newTestJSONFinder(t, "n", false)
		f.Observe(start)
		f.Observe(body)
	}
}
