package throttlepage

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// AllowHosts allows requests for hosts with these names, beside those that a Page serves in any case: IP addresses, names
// without a dot such as localhost, names that end in .localhost, .local or .internal, and any name over TLS. AllowHosts("*")
// allows all names. It is right where a login protects the page.
//
// Without this bound, any web site could read the page through the browser of a user who can reach it: the site's own name would
// resolve to the address of the page (DNS rebinding). None of the names above can lead to that, because no web site can have
// them, or a certificate for them.
//
// A reverse proxy that forwards the Host header of its clients needs the option, with the name of the proxy. New panics if a
// name is empty, or has a scheme, a port or a path.
func AllowHosts(names ...string) Option {
	return option(func(p *Page) {
		for _, name := range names {
			if name == "" || strings.ContainsAny(name, ":/") {
				panic(fmt.Sprintf("throttlepage: AllowHosts(%q): must be a name without a scheme, port and path, or *", name))
			}
			p.hosts[plainHost(name)] = true
		}
	})
}

// plainHost returns a name as it is compared.
func plainHost(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// notAllowed returns why a request is rejected; "": it is not.
func (p *Page) notAllowed(r *http.Request) string {
	if isOfOtherSite(r.Header) {
		return "throttlepage: requests by other web sites are not allowed"
	}
	// It is not for proxies to say what the host was: a script may send such headers.
	name := (&url.URL{Host: r.Host}).Hostname()
	if r.TLS == nil && !cannotBeOfWebSite(plainHost(name)) && !p.hosts[plainHost(name)] && !p.hosts["*"] {
		return fmt.Sprintf("throttlepage: the host %q is not allowed. If it is a name of this server, "+
			"pass throttlepage.AllowHosts(%[1]q) to throttlepage.New.", cut(name))
	}
	return ""
}

// isOfOtherSite reports whether a page of another site sent a request, such as a script or an image. To follow a link from there
// to the page is not such a request.
func isOfOtherSite(h http.Header) bool {
	followed := h.Get("Sec-Fetch-Mode") == "navigate" && h.Get("Sec-Fetch-Dest") == "document"
	return h.Get("Sec-Fetch-Site") == "cross-site" && !followed
}

// cannotBeOfWebSite reports whether a host is no name of the public DNS. A browser always sends a host.
func cannotBeOfWebSite(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil || !strings.Contains(host, ".") {
		return true
	}
	for _, private := range []string{".localhost", ".local", ".internal"} {
		if strings.HasSuffix(host, private) {
			return true
		}
	}
	return false
}
