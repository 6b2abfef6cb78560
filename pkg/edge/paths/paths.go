// Package paths refuses requests by their path: those that a rule denies, or those that no rule allows.
//
// A rule is a prefix that ends where a part of the path ends, and is compared with the path as the backend will read
// it. Backends do not agree on that: some resolve dot segments, merge slashes, cut parameters off, decode twice; others
// do not. So a path that can be read in several ways passes only if the rules let every reading pass.
package paths

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/edge/reply"
)

// Config has the rules. At least one of the lists is given; Deny wins.
type Config struct {
	// Deny is compared without regard to case: a path that differs from the rule in case is refused, too.
	Deny []string `json:"deny,omitempty" form:"^(/[^/%;?#]+)+$" desc:"prefixes such as /metrics, where a part of the path ends: 404, in any case and spelling"`
	// Allow is compared with regard to case.
	Allow []string `json:"allow,omitempty" form:"^(/[^/%;?#]+)+$" desc:"only these prefixes exist; default all"`
}

// Validate names every fault.
func (c *Config) Validate() error {
	var faults []error
	if len(c.Deny) == 0 && len(c.Allow) == 0 {
		faults = append(faults, errors.New("deny: missing (or allow)"))
	}
	check := func(field string, rules []string) {
		for i, rule := range rules {
			if !strings.HasPrefix(rule, "/") || rule == "/" || rule != path.Clean(rule) ||
				strings.ContainsAny(rule, `%\;?#`+"\x00") {
				faults = append(faults, fmt.Errorf("%s[%d]: %q is not like /prefix", field, i, rule))
			}
		}
	}
	check("deny", c.Deny)
	check("allow", c.Allow)
	return errors.Join(faults...)
}

// Guard refuses requests by the rules.
type Guard struct {
	deny, allow [][]string           // parts of the rules
	refused     []prometheus.Counter // by refusal
}

// New makes a guard. The metrics may be nil.
func New(c Config, route string, m *Metrics) (*Guard, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("failed to set up paths of route %s: %w", route, err)
	}
	g := &Guard{refused: m.route(route)}
	for _, rule := range c.Deny {
		g.deny = append(g.deny, strings.Split(rule[1:], "/"))
	}
	for _, rule := range c.Allow {
		g.allow = append(g.allow, strings.Split(rule[1:], "/"))
	}
	return g, nil
}

// Wrap refuses requests by the rules before they reach next. The ResponseWriter is passed on as it is.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		why := g.check(r.URL.EscapedPath())
		if r.URL.Opaque != "" {
			why = refusedAmbiguous // it is no path
		}
		if why != passed {
			g.refused[why].Inc()
			reply.Refuse(w, r, http.StatusNotFound, reply.NotFound, "no such path")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Passes reports whether [Guard.Wrap] lets a GET of a target pass.
func (g *Guard) Passes(target []byte) bool {
	escaped, _, _ := strings.Cut(string(target), "?")
	return strings.HasPrefix(escaped, "/") && g.check(escaped) == passed
}

// check applies the rules to a path as it is written in a request.
func (g *Guard) check(escaped string) refusal {
	parts, how := read(escaped)
	if how == endless {
		return refusedAmbiguous
	}
	for _, rule := range g.deny {
		if how == single && hasPrefix(parts, rule, alike) {
			return refusedDenied
		}
		// A backend that resolves or merges parts only leaves parts out.
		if how != single && hasSubsequence(parts, rule) {
			return refusedAmbiguous
		}
	}
	if len(g.allow) == 0 {
		return passed
	}
	if how == ambiguous {
		return refusedAmbiguous
	}
	same := func(a, b string) bool { return a == b }
	if !slices.ContainsFunc(g.allow, func(rule []string) bool { return hasPrefix(parts, rule, same) }) {
		return refusedUnlisted
	}
	return passed
}

func hasPrefix(parts, rule []string, same func(a, b string) bool) bool {
	if len(parts) < len(rule) {
		return false
	}
	return slices.EqualFunc(parts[:len(rule)], rule, same)
}

// alike compares without regard to case. strings.EqualFold does not know every change of case: in lower case, U+0130 is
// an i, and in upper case, U+0131 is an I.
func alike(a, b string) bool {
	lower, upper := strings.ToLower(a), strings.ToUpper(a)
	return strings.EqualFold(a, b) || lower == strings.ToLower(b) || upper == strings.ToUpper(b)
}

// hasSubsequence reports whether the rule's parts are among the path's, in order, with any parts between them.
func hasSubsequence(parts, rule []string) bool {
	for _, part := range parts {
		if len(rule) > 0 && (alike(part, rule[0]) || alike(bare(part), rule[0])) {
			rule = rule[1:]
		}
	}
	return len(rule) == 0
}
