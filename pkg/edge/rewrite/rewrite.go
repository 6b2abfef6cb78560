// Package rewrite changes the path of requests on their way to the backend: it takes a prefix off, or replaces the
// match of a regular expression (RE2, whose time is linear).
//
// It matches the decoded and clean path, as nginx does: dot segments and doubled slashes are resolved first, so that no
// path can climb out of the result of the rule.
package rewrite

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"

	"github.com/tinkerbell/stack/pkg/edge/reply"
)

// Config is a rule. Either StripPrefix or Regex is given.
type Config struct {
	// StripPrefix is taken off; it ends where a part of the path ends: "/tink-stack" is in "/tink-stack/x" and
	// "/tink-stack", not in "/tink-stacks".
	StripPrefix string `json:"stripPrefix,omitempty" desc:"taken off the path, where a part of it ends"`
	Regex       string `json:"regex,omitempty" desc:"RE2, matched from the beginning of the path"`
	Replacement string `json:"replacement,omitempty" desc:"the path instead, with $1 or ${1}"`
	PassOthers  bool   `json:"passOthers,omitempty" desc:"lets paths that do not match through; default 404"`
}

var reference = regexp.MustCompile(`\$(?:\$|(\w+)|\{(\w+)\})`)

// Validate names every fault.
func (c *Config) Validate() error {
	_, err := New(*c)
	return err
}

// Rule is a compiled rule.
type Rule struct {
	config Config
	regex  *regexp.Regexp
}

// New makes a rule, or names every fault.
func New(c Config) (*Rule, error) {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	r := &Rule{config: c}
	switch {
	case c.StripPrefix == "" && c.Regex == "":
		fault("stripPrefix: missing (or regex)")
	case c.StripPrefix != "" && c.Regex != "":
		fault("regex: a rule has either a stripPrefix or a regex")
	case c.StripPrefix != "":
		if c.StripPrefix != path.Clean(c.StripPrefix) || c.StripPrefix[0] != '/' || c.StripPrefix == "/" {
			fault("stripPrefix: %q is not like /prefix", c.StripPrefix)
		}
		if c.Replacement != "" {
			fault("replacement: there is no regex")
		}
	default:
		var err error
		if r.regex, err = regexp.Compile("^(?:" + c.Regex + ")"); err != nil {
			fault("regex: %w", err)
			break
		}
		if !strings.HasPrefix(c.Replacement, "/") {
			fault("replacement: %q does not begin with a slash", c.Replacement)
		}
		for _, match := range reference.FindAllStringSubmatch(c.Replacement, -1) {
			if name := match[1] + match[2]; name != "" && !r.has(name) {
				fault("replacement: the regex has no group %q (a digit before a letter is written ${1})", name)
			}
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return r, nil
}

// has reports whether the expression has a group of this name or number.
func (r *Rule) has(name string) bool {
	if n, err := strconv.Atoi(name); err == nil {
		return n >= 0 && n <= r.regex.NumSubexp()
	}
	return r.regex.SubexpIndex(name) >= 0
}

// Apply makes another path of one, both decoded; ok says that the rule matched.
func (r *Rule) Apply(p string) (out string, ok bool) {
	p = clean(p)
	if r.regex == nil {
		rest, found := strings.CutPrefix(p, r.config.StripPrefix)
		if !found || rest != "" && rest[0] != '/' {
			return p, false
		}
		return clean(rest), true
	}
	match := r.regex.FindStringSubmatchIndex(p)
	if match == nil {
		return p, false
	}
	return clean(string(r.regex.ExpandString(nil, r.config.Replacement, p, match))), true
}

// Wrap changes the path of the requests that reach next.
func (r *Rule) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		to, ok := r.url(req.URL)
		if !ok && !r.config.PassOthers {
			reply.Refuse(w, req, http.StatusNotFound, reply.NotFound, "no such path")
			return
		}
		changed := *req
		changed.URL, changed.RequestURI = to, to.RequestURI()
		next.ServeHTTP(w, &changed)
	})
}

// url is Apply for a URL. If only a prefix is taken off, the rest of the path keeps its encoding.
func (r *Rule) url(u *url.URL) (*url.URL, bool) {
	to := *u
	out, ok := r.Apply(u.Path)
	if !ok {
		return &to, false
	}
	to.Path, to.RawPath = out, ""
	raw, found := strings.CutPrefix(u.RawPath, r.config.StripPrefix)
	if found && r.regex == nil && strings.HasPrefix(raw, "/") {
		if decoded, err := url.PathUnescape(raw); err == nil && decoded == out {
			to.RawPath = raw
		}
	}
	return &to, true
}

// clean resolves dot segments and doubled slashes, and keeps a slash at the end.
func clean(p string) string {
	out := path.Clean("/" + p)
	if out != "/" && (strings.HasSuffix(p, "/") || strings.HasSuffix(p, "/.") || strings.HasSuffix(p, "/..")) {
		out += "/"
	}
	return out
}
