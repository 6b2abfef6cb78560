package admin

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// clusterNames end names that nobody can have made lead here from outside: their last labels are not delegated, and
// not asked for by multicast, as others of ".local" are, for which anybody on the link may answer (RFC 6762).
var clusterNames = []string{".svc", ".svc.cluster.local", ".localhost", ".internal"}

// guard refuses a page to a browser that a page of somebody else has made ask for it: by a name of theirs that leads
// here (DNS rebinding), or by a request that no person has followed a link for, or that changes something. Hosts are
// further names to be asked by.
func guard(hosts []string, page http.Handler) http.Handler {
	page = http.NewCrossOriginProtection().Handler(page)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		site := r.Header.Get("Sec-Fetch-Site")
		switch {
		case !ours(r.Host, hosts):
			http.Error(w, "this name is not known here: ask by address or localhost, or name it in STACK_BOOTS_HOSTS",
				http.StatusMisdirectedRequest)
		case (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Mode") != "navigate":
			http.Error(w, "not for the pages of others", http.StatusForbidden)
		default:
			page.ServeHTTP(w, r)
		}
	})
}

// ours reports whether a Host header is an address, or a name that leads here by our own doing.
func ours(host string, hosts []string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	name := strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(name, ".") {
		return true
	}
	return slices.ContainsFunc(clusterNames, func(end string) bool { return strings.HasSuffix(name, end) }) ||
		slices.ContainsFunc(hosts, func(known string) bool { return strings.EqualFold(known, name) })
}
