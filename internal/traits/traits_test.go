package traits

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/headers"
	"github.com/httpthrottle/throttle/internal/quota"
)

func newRequest(t *testing.T, method, url, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json; charset=utf-8")
	return req
}

func TestAMemberIsReadFromACopyOfTheBody(t *testing.T) {
	long := strings.Repeat("x", memberMost)
	for body, model := range map[string]string{
		`{"model":"a"}`: "a",
		`{"messages":[{"model":"b"}],"n":{"model":"c"},"model":"d\u0065"}`: "de",
		`{"model":7}`:                      "",
		`{"model":"a`:                      "",
		`["model","a"]`:                    "",
		`{"x":1}`:                          "",
		``:                                 "",
		`{"x":"` + long + `","model":"a"}`: "",
		`{"model":"` + long[:300] + `"}`:   "",
		`{"model":"a","x":"` + long + `"}`: "a",
	} {
		req := newRequest(t, "POST", "http://h/", body)
		require.Equal(t, model, memberOf(req, "model"), "%.60s", body)
		left, err := io.ReadAll(req.Body)
		require.NoError(t, err)
		require.Equal(t, body, string(left), "the body is not consumed")
	}
	req := newRequest(t, "POST", "http://h/", `{"model":"a"}`)
	req.GetBody = nil
	require.Empty(t, memberOf(req, "model"), "without GetBody, the body is not touched")
	req = newRequest(t, "POST", "http://h/", `{"model":"a"}`)
	req.Header.Set("Content-Type", "text/plain")
	require.Empty(t, memberOf(req, "model"))
}

func TestPartsOfARequest(t *testing.T) {
	parts := []headers.Part{{After: "models"}, {After: "channels"}, {Member: "model"}}
	for url, want := range map[string]string{
		"http://h/v1/models/pro:generateContent": "pro m",
		"http://h/channels/12/messages":          "12 m",
		"http://h/models/a%3A1%2Fb:generate":     "a:1/b m",
		"http://h/models":                        "m",
		"http://h/v1/submodels/x":                "m",
	} {
		require.Equal(t, want, Parts(newRequest(t, "POST", url, `{"model":"m"}`), parts), url)
	}
}

// What is shown of a request has nothing that may be secret.
func TestAnExampleOfARequestHasNoSecrets(t *testing.T) {
	for path, want := range map[string]string{
		"/search/code":                         "GET /search/code",
		"/repos/octo-org/Hello-World9/issues":  "GET /repos/octo-org/*/issues",
		"/bot110201543:AAHdqTcvCH1vGWJxfSeofS": "GET /*",
		"/v1/chat.postMessage":                 "GET /v1/chat.postMessage",
		"/services/T000/B000/q8f3Kd0aZ":        "GET /services/*/*/*",
		"":                                     "GET /*",
	} {
		require.Equal(t, want, (*traits)(newRequest(t, "GET", "http://h"+path, "")).String())
	}
	require.Less(t, len((*traits)(newRequest(t, "GET", "http://h/"+strings.Repeat("abc/", 1000), "")).String()), exampleMost+wordMost+10)
}

func TestTraitsOfAPath(t *testing.T) {
	of := func(path string) (all [quota.MaxTraits]uint64) {
		for n := range all {
			all[n] = (*traits)(newRequest(t, "GET", "http://h"+path, "")).Trait(n)
		}
		return all
	}
	require.Equal(t, [quota.MaxTraits]uint64{0, 1}, of("/api/v1/users"))
	require.Equal(t, [quota.MaxTraits]uint64{0, 2, hashOf("me")}, of("/api/v1/users/me"))
	require.Equal(t, [quota.MaxTraits]uint64{0, 3, hashOf("o"), hashOf("r")}, of("/repos/o/r"))
}

func TestACredentialIsATokenAndNoSignature(t *testing.T) {
	for credential, want := range map[string]bool{
		"Bearer eyJhbGciOi.eyJzdWIi.c2ln":     true,
		"Basic YWxhZGRpbjpvcGVuc2VzYW1l=":     true,
		"token ghp_16C7e42F292c6912E7710c8":   true,
		"sk-proj-abc_DEF":                     true,
		"":                                    false,
		"Bearer ":                             false,
		"AWS AKIDEXAMPLE:frJIUN8DYpKDtOLCwo=": false,
		"AWS4-HMAC-SHA256 Credential=AKID/20261127/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=fe5f80": false,
		`Digest username="Mufasa", nonce="7ypf/xlj9XXwfDPE", response="8ca523f5e9506fed4657c9700eebdbec"`:                 false,
		`OAuth oauth_consumer_key="xvz1ev", oauth_nonce="kYjzVBB8Y0ZFabxSWbWovY3uYSQ2pTgmZeNu2VS4cg"`:                     false,
	} {
		require.Equal(t, want, isStable(credential), credential)
	}
}

// Name is the host that ByHost of package throttle returns, whatever its letters.
func TestNameIsInLowerCase(t *testing.T) {
	named := func(host, url string) string {
		req := newRequest(t, http.MethodGet, url, "")
		req.Host = host
		return Name(req)
	}
	for host, want := range map[string]string{
		"api.example.com": "api.example.com", "API.example.com": "api.example.com", "api.example.coM": "api.example.com",
		"my_service.internal": "my_service.internal", "My_Service.internal": "my_service.internal", "a.B": "a.b", "é.example.É": "é.example.é",
		"[2001:DB8::1]:8080": "[2001:db8::1]:8080", "api.example.com:80": "api.example.com", "api.example.com.": "api.example.com",
		"api.example.com:443": "api.example.com:443", "api.example.com:": "api.example.com",
	} {
		require.Equal(t, want, named(host, "http://elsewhere/"), host)
	}
	require.Equal(t, "api.example.com", named("api.example.com:443", "https://elsewhere/"))
	for at := range 20 { // wherever the letter is
		host := []byte(strings.Repeat("a", 19) + "z")
		for _, letter := range "AMZ" {
			host[at] = byte(letter)
			require.Equal(t, strings.ToLower(string(host)), named(string(host), "http://elsewhere/"))
		}
	}
}
