package jsonfinder

import (
	"encoding/base64"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// frameOf returns a frame of an event stream with that payload.
func frameOf(payload string) string {
	const headers = "\x0b:event-type\x07\x00\x08metadata"
	b := binary.BigEndian.AppendUint32(nil, uint32(12+len(headers)+len(payload)+4))
	b = binary.BigEndian.AppendUint32(b, uint32(len(headers)))
	b = binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b))
	b = append(append(b, headers...), payload...)
	return string(binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b)))
}

func inBytes(payload string) string {
	return `{"bytes":"` + base64.StdEncoding.EncodeToString([]byte(payload)) + `","p":"abc"}`
}

func TestFinderReadsFrames(t *testing.T) {
	const usage = `{"usage":{"inputTokens":12,"outputTokens":9,"totalTokens":21}}`
	for name, c := range map[string]struct {
		body string
		want int64
	}{
		"one":                     {frameOf(usage), 21},
		"after others":            {frameOf(`{"delta":{"text":"{"}}`) + frameOf(`{"usage":{"totalTokens":1}}`) + frameOf(``) + frameOf(usage) + frameOf(`{}`), 21},
		"JSON in base64":          {frameOf(inBytes(`{"type":"x"}`)) + frameOf(inBytes(usage)) + frameOf(inBytes(`{"a":1}`)), 21},
		"one that only begins so": {frameOf(`{"bytes":[1],"usage":{"totalTokens":5}}`), 5},
		"one that is no base64":   {frameOf(`{"bytes":"{{{{{{{{"}`) + frameOf(usage), 21},
		"a value that is cut":     {frameOf(`{"usage":{"total`) + frameOf(usage), 21},
		"a frame that is cut":     {frameOf(usage) + frameOf(`{"usage":{"totalTokens":22}}`)[:40], 21},
		"a length that is none":   {frameOf(usage) + "\x00\x00\x00\x0f\x00\x00\x00\x00abcd" + frameOf(`{"usage":{"totalTokens":22}}`), 21},
		"headers that are none":   {frameOf(usage) + "\x00\x00\x00\xff\xff\xff\xff\xffabcd" + frameOf(`{"usage":{"totalTokens":22}}`), 21},
		"a length of 4 GiB":       {"\xff\xff\xff\xff\x00\x00\x00\x00abcd" + usage, 21},
		"nothing":                 {"", none},
	} {
		for size := range len(c.body) + 1 {
			f, err := New([]string{"usage.totalTokens"}, Frames)
			require.NoError(t, err)
			assert.Equal(t, c.want, observeJSON(f, cutJSON(c.body, size+1)...), "%s, in pieces of %d", name, size+1)
		}
	}
}

func TestNumbersSayWhatIsMissing(t *testing.T) {
	f, err := New([]string{"a", "b|c", "d"}, JSON)
	require.NoError(t, err)
	require.Equal(t, []int64{missing, missing, missing}, f.Numbers())
	f.Observe([]byte(strings.Repeat(`{"c":3,"d":0,"a":-1}`, 2)))
	require.Equal(t, []int64{missing, 3, 0}, f.Numbers())
	sum, ok := f.Sum()
	require.True(t, ok)
	require.Equal(t, int64(3), sum)
}
