package route

import (
	"iter"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/edge"
)

// Edge is what stands before the route.
func (r Route) Edge() edge.Config {
	return edge.Config{
		Hosts: r.Hosts, TLS: r.TLS, JWT: r.JWT, Limit: r.Limits.Requests, Rewrite: r.Rewrite,
		Paths: r.Paths, Backend: r.BackendTLS,
	}
}

// Web is whether the route speaks HTTP.
func (r Route) Web() bool { return slices.Contains([]Protocol{HTTP, GRPC, Files}, r.Protocol) }

// checkEdge finds what is wrong with what stands before the route.
func (r Route) checkEdge(at func(field, format string, args ...any)) {
	c := r.Edge()
	for field, text := range faults(c.Validate()) {
		if rest, ok := strings.CutPrefix(field, "limit."); ok {
			field = "limits.requests." + rest
		}
		at(field, "%s", text)
	}
}

// faults are the edge's, each with the field that it names.
func faults(err error) iter.Seq2[string, string] {
	return func(yield func(field, text string) bool) {
		for _, fault := range setting.Faults(err) {
			if field, text, _ := strings.Cut(fault.Error(), ": "); !yield(field, text) {
				return
			}
		}
	}
}
