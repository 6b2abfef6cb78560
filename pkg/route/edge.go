package route

import (
	"slices"
	"strings"

	"github.com/tinkerbell/stack/pkg/edge"
	"github.com/tinkerbell/stack/pkg/edge/host"
)

// Edge is what stands before the route.
func (r Route) Edge() edge.Config {
	return edge.Config{
		Hosts: r.Hosts, TLS: r.TLS, JWT: r.JWT, Limit: r.Limits.Requests, Rewrite: r.Rewrite,
		Backend: r.BackendTLS,
	}
}

// Web is whether the route speaks HTTP.
func (r Route) Web() bool { return slices.Contains([]Protocol{HTTP, GRPC, Files}, r.Protocol) }

// checkEdge finds what is wrong with what stands before the route. The faults name the field they are in.
func (r Route) checkEdge(at func(field, format string, args ...any)) {
	c := r.Edge()
	err := c.Validate()
	if err == nil {
		return
	}
	faults := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		faults = joined.Unwrap()
	}
	for _, fault := range faults {
		field, text, _ := strings.Cut(fault.Error(), ": ")
		if rest, ok := strings.CutPrefix(field, "limit."); ok {
			field = "limits.requests." + rest
		}
		at(field, "%s", text)
	}
}

// canShare is whether a route can have the address that others have, and why not, where that is to be told.
func canShare(r Route, others []Route) (why string, ok bool) {
	if len(others) == 0 {
		return "", true
	}
	entries := []host.Entry{{Hosts: r.Hosts}}
	for _, other := range others {
		switch {
		case !r.Web() || !other.Web():
			return "", false
		case len(r.Hosts) == 0 && len(other.Hosts) == 0:
			return "; routes share a port by hosts", false
		case (r.TLS == nil) != (other.TLS == nil):
			return ", and either both have tls or none", false
		}
		entries = append(entries, host.Entry{Hosts: other.Hosts})
	}
	if _, err := host.New(entries); err != nil {
		return ": " + err.Error(), false
	}
	return "", true
}
