package throttlepage

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// AllowHosts allows requests for hosts with these names. By default, a Page serves IP addresses, names without a dot such as
// localhost, names that end in .localhost, .local or .internal, and every name over TLS. It rejects requests for other hosts with
// status 403, and the response names this option. AllowHosts("*") allows every name, for example where a login protects the page.
//
// If a Page served every name, a web site could read it through the browser of a user who can reach it, by resolving the site's
// own name to the address of the Page (DNS rebinding). No web site can have the names that are served by default, or a
// certificate that this server presents.
//
// Behind a reverse proxy that ends TLS and forwards the Host header, allow the name of the proxy. AllowHosts may be given several
// times. New panics if a name is empty, or has a scheme, a port, a path or a wildcard.
func AllowHosts(names ...string) Option {
	return option(func(p *Page) {
		for _, name := range names {
			if name == "" || name != "*" && strings.ContainsAny(name, ":/* ") {
				panic(fmt.Sprintf(`throttlepage: AllowHosts(%q): must be "*", or a name without a scheme, port, path and wildcard`, name))
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
	// X-Forwarded-Host and Forwarded are not read, because a script can send them.
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
