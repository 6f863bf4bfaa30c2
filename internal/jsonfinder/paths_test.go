package jsonfinder

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestCompileNamesEachPathThatIsBad(t *testing.T) {
	many := strings.Repeat("a.", maxNames) + "a"
	long := strings.Repeat("n", maxName+1)
	for _, c := range []struct {
		paths []string
		want  []string // problems
	}{
		{nil, []string{`no path`}},
		{[]string{""}, []string{`path "": an empty name`}},
		{[]string{"."}, []string{`path ".": an empty name`}},
		{[]string{"a."}, []string{`path "a.": an empty name`}},
		{[]string{".a"}, []string{`path ".a": an empty name`}},
		{[]string{"a..b"}, []string{`path "a..b": an empty name`}},
		{[]string{"a|"}, []string{`path "a|": an empty name`}},
		{[]string{"|a"}, []string{`path "|a": an empty name`}},
		{[]string{"a||b"}, []string{`path "a||b": an empty name`}},
		{[]string{many}, []string{`path "` + many + `": more than 16 names`}},
		{[]string{"b." + long}, []string{`path "b.` + long + `": a name of more than 256 bytes`}},
		{[]string{"a.b", "c|a.b"}, []string{`path "c|a.b": "a.b" is there twice`}},
		{[]string{"a|a"}, []string{`path "a|a": "a" is there twice`}},
		{[]string{"a.", "b", "b", ".c"}, []string{`path "a.": an empty name`, `path "b": "b" is there twice`, `path ".c": an empty name`}},
		{strings.Split(mostPaths+"+q", "+"), []string{`path "q": more than 16 paths and alternatives`}},
		{strings.Split(mostPaths+"|q+r", "+"), []string{`path "a.p|q": more than 16 paths and alternatives`}},
	} {
		p, err := Compile(c.paths)
		assert.Nil(t, p)
		require.EqualError(t, err, strings.Join(c.want, "\n"), c.paths)
		f, err := New(c.paths, JSON)
		assert.Nil(t, f)
		require.Error(t, err)
	}
}

func TestFinderIsSmallAndStandsAlone(t *testing.T) {
	t.Log(unsafe.Sizeof(Finder{}), "bytes")
	assert.LessOrEqual(t, unsafe.Sizeof(Finder{}), uintptr(400))
	p, err := compileJSON("usage.in+usage.out")
	require.NoError(t, err)
	body := "data: {\"usage\":{\"in\":1,\"x\":[\"\\\"]\"],\"out\":2}}\r\n\r\n"
	for i := range len(body) {
		a := p.Finder(Events)
		a.Observe([]byte(body[:i]))
		b := a
		a.Observe([]byte("\n\ndata: {\"usage\":{\"in\":100,\"out\":100}}\n\n"))
		b.Observe([]byte(body[i:]))
		n, ok := b.Sum()
		require.True(t, ok)
		require.EqualValues(t, 3, n)
	}
	var embedded struct{ f Finder }
	require.Zero(t, testing.AllocsPerRun(10, func() { embedded.f = p.Finder(Events) }))
}

// What a stream must contain is what the names of all paths end with, from a rare byte on.
func TestNeedles(t *testing.T) {
	for paths, want := range map[string][]string{
		"usage.total_tokens":                          {`kens"`},
		"usage.input_tokens|message.usage.x_tokens":   {`kens"`},
		"usage.prompt_tokens+usage.completion_tokens": {`kens"`},
		"usage+cost":                      {`ge"`, `cost"`},
		"n+m.in+m.xn":                     {`n"`},
		"total+a.b/c":                     nil,
		"total+a.\u00e9":                  nil,
		"a.TotalCount+b.promptTokenCount": {`Count"`},
	} {
		p, err := compileJSON(paths)
		require.NoError(t, err)
		var got []string
		for _, n := range p.needles {
			got = append(got, string(n))
		}
		assert.Equal(t, want, got, paths)
	}
}

// Finder returns one for a body.
func (p *Paths) Finder(form Form) (f Finder) {
	f.Begin(p, form)
	return f
}
