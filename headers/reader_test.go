package headers_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/headers"
)

// which returns the dialect that a reader has for a host, by the wait of a bare 429.
func which(r *headers.Reader, host string) time.Duration {
	return r.Parse(host, 429, http.Header{}, nil, noon).Wait.Value
}

func TestHostsChooseAmongDialects(t *testing.T) {
	a := headers.Dialect{Name: "a", MinWait: 1, Hosts: []string{"api.a.com", "*.b.com"}}
	b := headers.Dialect{Name: "b", MinWait: 2, Hosts: []string{"api.b.com", "*.a.com", "API.A.COM"}}
	both, err := headers.NewReader(a, b)
	require.NoError(t, err)
	for host, want := range map[string]time.Duration{
		"api.a.com": 1, "API.A.com:443": 1, "api.a.com.": 1, "www.a.com": 2, "x.y.a.com": 2, "api.b.com": 2, "www.b.com": 1,
		"a.com": 1, "b.com": 1, "xa.com": 1, "other.org": 1, "": 1, ":": 1, "[::1]:80": 1, "[::1]": 1, ".a.com": 2, "..": 1,
	} {
		assert.Equal(t, want, which(both, host), host)
	}

	regions := headers.Dialect{Name: "regions", MinWait: 3, Hosts: []string{"API.*.b.com", "x.*.c.com"}}
	among, err := headers.NewReader(a, regions)
	require.NoError(t, err)
	for host, want := range map[string]time.Duration{
		"api.x.b.com": 3, "api.X.b.com:443": 3, "api.x.y.b.com": 1, "api..b.com": 1, "api.b.com": 1, "xapi.x.b.com": 1, "api.x.b.com.org": 1,
	} {
		assert.Equal(t, want, which(among, host), host)
	}

	one, err := headers.NewReader(b)
	require.NoError(t, err)
	assert.Equal(t, time.Duration(2), which(one, "127.0.0.1:1234"), "a single dialect is for every host")

	auto, err := headers.NewReader(headers.Auto)
	require.NoError(t, err)
	assert.Equal(t, time.Minute, which(auto, "api.github.com"))
	assert.Equal(t, time.Duration(0), which(auto, "example.com"))
	assert.Equal(t, time.Duration(0), which(auto, "github.com.example.com"))

	mine := headers.GitHub.Dialect()
	mine.MinWait = time.Hour
	overridden, err := headers.NewReader(headers.Auto, mine)
	require.NoError(t, err)
	assert.Equal(t, time.Hour, which(overridden, "api.github.com"))
	assert.Equal(t, "method", overridden.Parse("slack.com", 429, http.Header{}, nil, noon).Scope)
	assert.Equal(t, time.Hour, which(overridden, "ghe.example.com"))
}

func TestAReaderWithoutHintsIsParse(t *testing.T) {
	empty, err := headers.NewReader()
	require.NoError(t, err)
	generic, err := headers.NewReader(headers.Generic)
	require.NoError(t, err)
	for _, r := range []*headers.Reader{nil, new(headers.Reader), empty, generic} {
		assert.False(t, r.WantsBody("api.github.com", 403, http.Header{}))
		for _, c := range responses(t) {
			assert.Equal(t, headers.Parse(c.Status, c.header(), c.Now), r.Parse("api.github.com", c.Status, c.header(), nil, c.Now), c.ID)
		}
	}
}

func TestAReaderReadsBodiesByHost(t *testing.T) {
	r, err := headers.NewReader(headers.Auto)
	require.NoError(t, err)
	h := header("Content-Type: application/json")
	body := []byte(`{"errors":[{"extensions":{"code":"THROTTLED"}}]}`)
	assert.True(t, r.WantsBody("shop.myshopify.com", 200, h))
	assert.True(t, r.Parse("shop.myshopify.com", 200, h, body, noon).Limited)
	assert.False(t, r.WantsBody("api.example.com", 200, h))
	assert.False(t, r.Parse("api.example.com", 200, h, body, noon).Limited)
}

func TestAReaderDoesntShareItsDialects(t *testing.T) {
	d := headers.Dialect{
		Hosts: []string{"a.com"}, Fields: []headers.Field{{Name: "X-Left", Role: headers.RoleRemaining}},
		Rules: []headers.Rule{{Statuses: []int{400}, Body: []headers.Match{{Name: "m", Values: []string{"v"}}}}},
	}
	r, err := headers.NewReader(d, headers.Auto)
	require.NoError(t, err)
	d.Hosts[0], d.Fields[0].Name, d.Rules[0].Statuses[0], d.Rules[0].Body[0].Values[0] = "b.com", "X-Right", 401, "w"
	assert.True(t, r.Parse("a.com", 400, http.Header{}, []byte(`{"m":"v"}`), noon).Limited)
	assert.Len(t, r.Parse("a.com", 200, http.Header{"X-Left": {"1"}}, nil, noon).Buckets, 1)
}

func TestNewReaderNamesAllThatIsWrong(t *testing.T) {
	_, err := headers.NewReader(headers.Preset("gitbuh"), nil, headers.Preset(""), headers.Dialect{
		Name: "mine", MinWait: -1, Hosts: []string{"", "*.", "a*.com", "*.a.*.com", "a.*.*.com", "https://a.com", "a.com:80"},
		Fields:  []headers.Field{{}, {Name: "X", Form: 99}, {Name: "X", Role: 99}, {Name: "X", Window: -1}},
		Members: []headers.Field{{}},
		Rules:   []headers.Rule{{Wait: -1}},
	})
	require.Error(t, err)
	for _, want := range []string{
		`no preset "gitbuh"`, `hint 1 is nil`, `no preset ""`, `dialect "mine": MinWait -1ns is negative`, `"a*.com"`, `"*.a.*.com"`, `"a.*.*.com"`, `"https://a.com"`, `"a.com:80"`,
		"Form:99", "Role:99", "negative wait",
	} {
		assert.ErrorContains(t, err, want)
	}
}
