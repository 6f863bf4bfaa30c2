package throttlepage

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
)

// ask returns the status and the text of the response to a request with these headers for a host.
func ask(p *Page, host, path string, header http.Header) (int, string) {
	r := request(http.MethodGet, path)
	r.Host, r.Header = host, header
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

var paths = []string{"/", "/text", "/state.json", "/events", "/nothing"}

func TestHostThatAWebSiteCannotHaveIsServed(t *testing.T) {
	p := newPage(map[string]source{"a": &fake{}})
	for _, host := range []string{
		"", "localhost", "localhost:8080", "LocalHost.:80", "127.0.0.1", "127.0.0.1:6060", "10.1.2.3:80", "203.0.113.9", "[::1]", "[::1]:8080", "[fe80::1%25eth0]:80",
		"orders", "orders:8080", "app.localhost:80", "orders.default.svc.cluster.local", "ip-10-0-0-1.ec2.internal:80", "PRINTER.LOCAL",
	} {
		code, _ := ask(p, host, "/", nil)
		assert.Equal(t, http.StatusOK, code, host)
	}
}

// A name that is not known may be one that an attacker has pointed to the address of the page.
func TestForeignHostIsRejectedWithTheOptionThatAllowsIt(t *testing.T) {
	p := newPage(map[string]source{"secret": &fake{}}, AllowHosts("admin.example.com"))
	for _, host := range []string{
		"evil.example", "evil.example:8080", "evil.example.", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:80@localhost", "xlocalhost.evil",
		"x.admin.example.com", "admin.example.com.evil.example", "1.2.3", "0x7f.1", "mylocal.notlocal", "..",
	} {
		for _, path := range paths {
			code, text := ask(p, host, path, nil)
			assert.Equal(t, http.StatusForbidden, code, host+path)
			assert.NotContains(t, text, "secret")
		}
	}
	_, text := ask(p, "evil.example:8080", "/", http.Header{"X-Forwarded-Host": {"localhost"}, "Forwarded": {"host=localhost"}})
	assert.Equal(t, "throttlepage: the host \"evil.example\" is not allowed. If it is a name of this server, "+
		"pass throttlepage.AllowHosts(\"evil.example\") to throttlepage.New.\n", text)
}

func TestAllowHosts(t *testing.T) {
	some := newPage(nil, AllowHosts("Admin.Example.com", "other.example."), AllowHosts("third.example"))
	for _, host := range []string{"admin.example.com", "ADMIN.example.com:8443", "admin.example.com.", "other.example", "third.example:80", "localhost"} {
		code, _ := ask(some, host, "/", nil)
		assert.Equal(t, http.StatusOK, code, host)
	}
	all := newPage(nil, AllowHosts("*"))
	code, _ := ask(all, "any.example", "/", nil)
	assert.Equal(t, http.StatusOK, code)

	assert.PanicsWithValue(t, `throttlepage: AllowHosts("https://a.example"): must be "*", or a name without a scheme, port, path and wildcard`, func() { New(nil, AllowHosts("https://a.example")) })
	for _, name := range []string{"", "a.example:80", "a.example/debug", "*.example", "a.example b.example"} {
		assert.Panics(t, func() { New(nil, AllowHosts("b.example", name)) }, name)
	}
}

// No other site has a certificate that a browser accepts for its name from this server.
func TestAnyHostIsServedOverTLS(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "https://admin.example.com/", nil)
	r.TLS = &tls.ConnectionState{}
	w := httptest.NewRecorder()
	newPage(nil).ServeHTTP(w, r)
	assert.Equal(t, http.StatusOK, w.Code)
}

func TestRequestOfAnotherSiteIsRejected(t *testing.T) {
	p := newPage(map[string]source{"secret": &fake{}}, AllowHosts("*"))
	fetch := func(site, mode, dest string) http.Header {
		return http.Header{"Sec-Fetch-Site": {site}, "Sec-Fetch-Mode": {mode}, "Sec-Fetch-Dest": {dest}}
	}
	for _, h := range []http.Header{
		{"Sec-Fetch-Site": {"cross-site"}}, fetch("cross-site", "no-cors", "image"), fetch("cross-site", "cors", "empty"), fetch("cross-site", "navigate", "iframe"),
		fetch("cross-site", "no-cors", "document"),
	} {
		for _, path := range paths {
			code, text := ask(p, "localhost", path, h)
			assert.Equal(t, http.StatusForbidden, code, "%s %v", path, h)
			assert.Equal(t, "throttlepage: requests by other web sites are not allowed\n", text)
		}
	}
	for _, h := range []http.Header{
		nil, fetch("none", "navigate", "document"), fetch("same-origin", "cors", "empty"), fetch("same-site", "cors", "empty"),
		fetch("cross-site", "navigate", "document"), // a link
	} {
		code, _ := ask(p, "localhost", "/", h)
		assert.Equal(t, http.StatusOK, code, h)
	}
}
