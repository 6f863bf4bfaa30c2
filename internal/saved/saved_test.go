package saved

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fill sets v and all that it contains, so that a field that is added to a State is tested, too.
func fill(r *rand.Rand, v reflect.Value) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Unix(r.Int64N(1<<35), r.Int64N(1e9)).UTC()))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(r, v.Field(i))
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1+r.IntN(3), 3))
		for i := range v.Len() {
			fill(r, v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range 1 + r.IntN(3) {
			name, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(r, name)
			fill(r, value)
			v.SetMapIndex(name, value)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(r, v.Elem())
	case reflect.String:
		v.SetString(texts[1+r.IntN(len(texts)-1)])
	case reflect.Float64:
		v.SetFloat([]float64{r.NormFloat64(), 5e-324, -math.MaxFloat64, 0.1, 1 << 60, r.Float64()}[r.IntN(6)])
	case reflect.Int, reflect.Int64:
		v.SetInt([]int64{math.MinInt64, math.MaxInt64, -1, 1, 1<<53 + 1, r.Int64()}[r.IntN(6)])
	case reflect.Bool:
		v.SetBool(true)
	default:
		panic("fill: " + v.Type().String())
	}
}

var texts = []string{"", "user-7", "a\x00b", "é", `{"base64":"/w=="}`, "<&>\u2028", "\ufffd", strings.Repeat("k", 300), `"\`}

// anyState returns a State in which every field is set, as Decode returns it.
func anyState(seed uint64) (s State) {
	fill(rand.New(rand.NewPCG(seed, 1)), reflect.ValueOf(&s).Elem())
	s.Version = Version
	return s
}

func roundTrip(t *testing.T, s State) State {
	t.Helper()
	text, err := s.Encode()
	require.NoError(t, err)
	back, err := Decode(text)
	require.NoError(t, err, string(text))
	return back
}

func TestDecodeReturnsWhatWasEncodedInEveryField(t *testing.T) {
	for seed := range uint64(300) {
		s := anyState(seed)
		require.Equal(t, s, roundTrip(t, s), "seed %d", seed)
	}
	assert.Equal(t, State{Version: Version}, roundTrip(t, State{}))
	assert.Equal(t, Version, roundTrip(t, State{Version: 99}).Version, "it is the version of the JSON, not of the State")
	there := time.Date(2026, 1, 2, 3, 4, 5, 6, time.FixedZone("", 3600))
	assert.True(t, there.Equal(roundTrip(t, State{Taken: there}).Taken))
}

// Raw hashes are keys as good as others, and two of them must not become one.
func TestKeysOfAnyBytesAreKept(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	s := State{Version: Version, Servers: []Server{{Keys: map[string]Key{}}}}
	keys := []Key{"\xff", "\xfe", "\ufffd", "a\xc3", "\xed\xa0\x80"}
	for range 100 {
		b := make([]byte, r.IntN(33))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		keys = append(keys, Key(b))
	}
	for i, k := range keys {
		s.Buckets = append(s.Buckets, Bucket{Key: k})
		s.Servers[0].Keys[fmt.Sprint(i)] = k
	}
	assert.Equal(t, s, roundTrip(t, s))
	text, err := json.Marshal([]Key{"plain", "\xff"})
	require.NoError(t, err)
	assert.Equal(t, `["plain",{"base64":"/w=="}]`, string(text), "a key that is text is readable")
}

// The files of programs that run already must be read by every later release that has the same Version.
func TestVersion1IsReadAsItWasWritten(t *testing.T) {
	const text = `{"version":1,"taken":"2026-01-02T03:04:05.000000006Z",
		"buckets":[{"limit":"l","kind":"bucket","key":"k","tokens":1.5,"spent":[{"ago":7,"cost":8}],"held":9,"after":10,
			"learned":{"in_flight":1,"rate":2,"ceiling":3,"failures":4,"latency":5,"dear_hold":6}}],
		"servers":[{"host":"h","keys":{"l":"k"},"held":11,"host_held":12,"after":13,
			"quotas":[{"name":"q","limit":-1,"left":14,"reset":15,"counted":true,"reserve":16}]}],
		"held":17}`
	s, err := Decode([]byte(text))
	require.NoError(t, err)
	assert.Equal(t, State{
		Version: 1, Taken: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Held: 17,
		Buckets: []Bucket{{
			Limit: "l", Kind: "bucket", Key: "k", Tokens: 1.5, Spent: []Spent{{7, 8}}, Held: 9, After: 10,
			Learned: &Learned{InFlight: 1, Rate: 2, Ceiling: 3, Failures: 4, Latency: 5, DearHold: 6},
		}},
		Servers: []Server{{
			Host: "h", Keys: map[string]Key{"l": "k"}, Held: 11, HostHeld: 12, After: 13, Quotas: []Quota{{"q", -1, 14, 15, true, 16}},
		}},
	}, s)
	again, err := s.Encode()
	require.NoError(t, err)
	assert.JSONEq(t, text, string(again))
}

func TestErrorsSayWhatCannotBeRead(t *testing.T) {
	for text, says := range map[string]string{
		"":                           "unexpected end of JSON input",
		"null":                       "this is no Snapshot: it has no version",
		`{"version":null}`:           "this is no Snapshot: it has no version",
		`[1]`:                        "cannot unmarshal array",
		`"version"`:                  "cannot unmarshal string",
		`{"version":0}`:              "a Snapshot of version 0 cannot be read, only version 1",
		`{"version":-1}`:             "a Snapshot of version -1 cannot be read, only version 1",
		`{"version":2,"buckets":7}`:  "a Snapshot of version 2 cannot be read, only version 1",
		`{"version":"1"}`:            "cannot unmarshal string into Go struct field .Version of type int",
		`{"version":1.5}`:            "cannot unmarshal number 1.5 into Go struct field .Version of type int",
		`{"version":1e99}`:           "cannot unmarshal number 1e99 into Go struct field .Version of type int",
		`{"version":1}{"version":1}`: "invalid character '{' after top-level value",
		`{"version":1,"held":9223372036854775808}`:                       "number 9223372036854775808 into Go struct field State.held",
		`{"version":1,"held":"1h"}`:                                      "cannot unmarshal string into Go struct field State.held",
		`{"version":1,"taken":"yesterday"}`:                              `cannot parse "yesterday"`,
		`{"version":1,"buckets":[{"tokens":1e309}]}`:                     "cannot unmarshal number 1e309 into Go struct field Bucket.buckets.tokens",
		`{"version":1,"buckets":[{"tokens":NaN}]}`:                       "invalid character 'N'",
		`{"version":1,"buckets":[{"key":7}]}`:                            "cannot unmarshal number",
		`{"version":1,"buckets":[{"key":{"base64":"?"}}]}`:               "illegal base64 data",
		`{"version":1,"buckets":[{"spent":[{"cost":0.5}]}]}`:             "cannot unmarshal number 0.5",
		`{"version":1,"servers":[{"keys":["k"]}]}`:                       "cannot unmarshal array into Go struct field Server.servers.keys",
		`{"version":1,"x":` + strings.Repeat("[", 1e5):                   "exceeded max depth",
		`{"version":1,"servers":[{"quotas":[{"left":1e3,"limit":""}]}]}`: "cannot unmarshal",
	} {
		_, err := Decode([]byte(text))
		assert.ErrorContains(t, err, says, "%.80s", text)
	}
}

// A later release of the same Version may write more, and a reader that does not know it has to do without.
func TestUnknownMembersAreIgnored(t *testing.T) {
	s, err := Decode([]byte(`{"new":{"a":[1,{}]},"version":1,"buckets":[{"limit":"l","more":null,"tokens":2}],"held":3}`))
	require.NoError(t, err)
	assert.Equal(t, State{Version: 1, Buckets: []Bucket{{Limit: "l", Tokens: 2}}, Held: 3}, s)
}

func TestWhatJSONCannotHoldIsNotWritten(t *testing.T) {
	for _, s := range []State{
		{Buckets: []Bucket{{Tokens: math.NaN()}}}, {Buckets: []Bucket{{Learned: &Learned{Latency: math.Inf(1)}}}},
		{Taken: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		text, err := s.Encode()
		assert.Error(t, err)
		assert.Empty(t, text)
	}
}

func TestTruncatedAtAnyByteIsAnError(t *testing.T) {
	text, err := anyState(7).Encode()
	require.NoError(t, err)
	for i := range text {
		_, err := Decode(text[:i])
		var syntax *json.SyntaxError
		require.ErrorAs(t, err, &syntax, "%d of %d bytes", i, len(text))
		require.LessOrEqual(t, syntax.Offset, int64(i))
	}
}

// requireStable checks that what Decode accepts can be written again, and is then read as the same.
func requireStable(t *testing.T, text []byte) {
	t.Helper()
	s, err := Decode(text)
	if err != nil {
		require.NotEmpty(t, err.Error())
		return
	}
	again, err := s.Encode()
	require.NoError(t, err, "%q", text)
	same, err := Decode(again)
	require.NoError(t, err, "%q", again)
	once, err := same.Encode()
	require.NoError(t, err)
	require.Equal(t, string(again), string(once))
}

func TestDamageIsAnErrorOrAStateThatCanBeSaved(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	text, err := anyState(7).Encode()
	require.NoError(t, err)
	for i := range text {
		damaged := slices.Clone(text)
		damaged[i] = []byte{0, '"', '{', '}', ',', '9', '-', 0xff, byte(r.Uint32())}[r.IntN(9)]
		requireStable(t, damaged)
	}
}

func FuzzDecode(f *testing.F) {
	for seed := range uint64(3) {
		text, err := anyState(seed).Encode()
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte(`{"version":1,"buckets":[{"key":{"base64":"/w=="}}],"servers":[{"keys":{"l":null}}]}`))
	f.Fuzz(requireStable)
}
