package paths

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func guard(t testing.TB, c Config) *Guard {
	t.Helper()
	g, err := New(c, "r", nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// What denies hides a path in each of its spellings; what allows lets no other through in any.
func TestDeniedPathsAreHiddenInEachSpelling(t *testing.T) {
	deny := Config{Deny: []string{"/metrics", "/smee/metrics", "/debug"}}
	allow := Config{Allow: []string{"/ipxe", "/2009-04-04", "/metadata"}}
	dotted := Config{Deny: []string{"/end."}}
	both := Config{Allow: []string{"/ipxe"}, Deny: []string{"/ipxe/secret"}}
	tests := []struct {
		rules Config
		path  string
		want  refusal
	}{
		{deny, "/", passed},
		{deny, "/auto.ipxe", passed},
		{deny, "/metricsx", passed},
		{deny, "/x/metrics", passed},
		{deny, "/smee", passed},
		{deny, "/30:00:00:00:00:01/auto.ipxe", passed},
		{deny, "/30%3a00%3A00/a%20b", passed},
		{deny, "/docs/my%20file/metrics", passed},
		{deny, "/100%25", passed},
		{deny, "//auto.ipxe", passed},
		{deny, "/a/../b/./c;x=1", passed},
		{deny, "/metrics", refusedDenied},
		{deny, "/metrics/", refusedDenied},
		{deny, "/metrics/x", refusedDenied},
		{deny, "/METRICS", refusedDenied},
		{deny, "/smee/metrics", refusedDenied},
		{deny, "/debug/pprof/heap", refusedDenied},
		{deny, "/%6detrics", refusedDenied},
		{deny, "/%6D%65trics", refusedDenied},
		{deny, "/%6d%45trics", refusedDenied},
		{deny, "//metrics", refusedAmbiguous},
		{deny, "/./metrics", refusedAmbiguous},
		{deny, "/metrics/.", refusedAmbiguous},
		{deny, "/metrics/..", refusedAmbiguous},
		{deny, "/metrics//", refusedAmbiguous},
		{deny, "/x/../metrics", refusedAmbiguous},
		{deny, "/x/%2e%2E/metrics", refusedAmbiguous},
		{deny, "/x%2f..%2Fmetrics", refusedAmbiguous},
		{deny, "/smee%2fmetrics", refusedAmbiguous},
		{deny, "/smee%252fmetrics", refusedAmbiguous},
		{deny, "/smee%5cmetrics", refusedAmbiguous},
		{deny, `/smee\metrics`, refusedAmbiguous},
		{deny, "/%256detrics", refusedAmbiguous},
		{deny, "/%25256detrics", refusedAmbiguous},
		{deny, "/%25252525252561", refusedAmbiguous}, // too often to tell
		{deny, "/metrics;x", refusedAmbiguous},
		{deny, "/;/metrics", refusedAmbiguous},
		{deny, "/x/..;/metrics", refusedAmbiguous},
		{deny, "/metrics%3fx", refusedAmbiguous},
		{deny, "/metrics%23x", refusedAmbiguous},
		{deny, "/metrics%00.ipxe", refusedAmbiguous},
		{deny, "/x/../metrics//..", refusedAmbiguous},
		{deny, "/metrics%0a", refusedAmbiguous},
		{deny, "/metrics%20", refusedAmbiguous},
		{deny, "/%09METRICS%0D%0A", refusedAmbiguous},
		{deny, "/metrics%c2%85", refusedAmbiguous},
		{deny, "/metrics%a0", refusedAmbiguous},
		{deny, "/%ef%bb%bfmetrics", refusedAmbiguous},
		{deny, "/metrics.", refusedAmbiguous},
		{deny, "/metrics..%20/x", refusedAmbiguous},
		{deny, "/smee%20/%0ametrics", refusedAmbiguous},
		{deny, "/%20/metrics", refusedAmbiguous},
		{deny, "/metr%c4%b1cs", refusedDenied}, // in upper case
		{deny, "/metr%c4%b0cs", refusedDenied}, // in lower case
		{deny, "/x%0a/my%20file.", passed},
		{dotted, "/end.", refusedAmbiguous},
		{dotted, "/end", passed},
		{deny, "/smee//x/../metrics", refusedAmbiguous},
		{deny, "metrics", refusedAmbiguous},
		{allow, "/ipxe", passed},
		{allow, "/ipxe/", passed},
		{allow, "/ipxe/script/auto.ipxe", passed},
		{allow, "/ipxe/script//auto.ipxe", passed},
		{allow, "/2009-04-04/meta-data/", passed},
		{allow, "/%69pxe/x", passed},
		{allow, "/", refusedUnlisted},
		{allow, "/login", refusedUnlisted},
		{allow, "/ipxes", refusedUnlisted},
		{allow, "/IPXE/x", refusedUnlisted},
		{allow, "//ipxe/x", refusedUnlisted},
		{allow, "/x/../ipxe/x", refusedAmbiguous},
		{allow, "/ipxe/../login", refusedAmbiguous},
		{allow, "/ipxe/%2e%2e/login", refusedAmbiguous},
		{allow, "/ipxe%2fx", refusedAmbiguous},
		{allow, "/ipxe/..%252flogin", refusedAmbiguous},
		{allow, "/ipxe;x/y", refusedAmbiguous},
		{allow, "/ipxe%0a", refusedAmbiguous},
		{allow, "/ipxe/x%20", refusedAmbiguous},
		{allow, "/ipxe/x..", refusedAmbiguous},
		{allow, "/ipxe/my%20file.efi", passed},
		{allow, "/ipxe/...", refusedAmbiguous},
		{allow, "*", refusedAmbiguous},
		{both, "/ipxe/x", passed},
		{both, "/ipxe/secret", refusedDenied},
		{both, "/ipxe/Secret/x", refusedDenied},
		{both, "/ipxe//secret", refusedAmbiguous},
		{both, "/other", refusedUnlisted},
	}
	for _, test := range tests {
		if got := guard(t, test.rules).check(test.path); got != test.want {
			t.Errorf("%s by %+v: %s, want %s", test.path, test.rules, got, test.want)
		}
	}
}

// readings are what backends make of a path: decoded once or more, with parameters or without, with dot segments and
// empty parts resolved, merged, or left, and with white space and dots at the ends of parts, or without.
func readings(escaped string) (all []string) {
	add := func(p string) {
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	decoded, _ := unescape(escaped)
	for range 6 {
		for _, p := range []string{decoded, strings.ReplaceAll(decoded, `\`, "/"), cut(decoded, "?#\x00")} {
			for _, p := range []string{p, eachPart(p, func(s string) string { return cut(s, ";") }),
				eachPart(strings.ReplaceAll(p, `\`, "/"), func(s string) string { return cut(s, ";?#\x00") })} {
				add(p)
				add(path.Clean("/" + p))
				add(path.Clean("/" + eachPart(p, strings.TrimSpace)))
				add(path.Clean("/" + eachPart(p, func(s string) string { return strings.Trim(s, "\x1c\x1d\x1e\x1f \t\r\n") })))
				add(path.Clean("/" + eachPart(p, func(s string) string { return strings.TrimRight(s, ". ") })))
				add((&url.URL{Path: "/"}).ResolveReference(&url.URL{Path: p}).Path) // keeps empty parts
			}
		}
		next, _ := unescape(decoded)
		if next == decoded {
			break
		}
		decoded = next
	}
	return all
}

func cut(s, at string) string {
	if i := strings.IndexAny(s, at); i >= 0 {
		return s[:i]
	}
	return s
}

func eachPart(p string, change func(string) string) string {
	parts := strings.Split(p, "/")
	for i := range parts {
		parts[i] = change(parts[i])
	}
	return strings.Join(parts, "/")
}

func under(p, rule string) bool {
	return len(p) >= len(rule) && strings.EqualFold(p[:len(rule)], rule) && (len(p) == len(rule) || p[len(rule)] == '/')
}

// Whichever way a backend reads a path that passed, it is none that is denied, and one that is allowed.
func FuzzPaths(f *testing.F) {
	for _, seed := range []string{
		"/", "/metrics", "/%6detrics", "/x/..%2fmetrics", "//metrics", "/a/b/../../metrics", "/metrics;x", "/x/..;/metrics",
		"/%256detrics", "/ipxe/../metrics", "/ipxe//x", "/smee/%2e/metrics", `/smee\metrics`, "/metrics%00", "/metrics%3f",
		"/a/b//../../metrics", "/ipxe/x%2F..%2f..%2fmetrics", "/.ipxe", "/ipxe/x?a=../metrics", "/100%", "/%zz/%2",
		"/x/../metrics//..", "/%2569pxe/x", "/ipxe%25252f..%25252fx", "/metrics%0a", "/metrics.%20.", "/x/%20../metrics",
		"/ipxe/..%20/metrics", "/ipxe/x./", "/ipxe/.../x",
	} {
		f.Add(seed)
	}
	configs := []Config{{Deny: []string{"/metrics", "/smee/metrics"}}, {Allow: []string{"/ipxe", "/smee/x"}}}
	guards := []*Guard{guard(f, configs[0]), guard(f, configs[1])}
	f.Fuzz(func(t *testing.T, target string) {
		escaped, _, _ := strings.Cut(target, "?")
		for i, config := range configs {
			if guards[i].check(escaped) != passed {
				continue
			}
			for _, p := range readings(escaped) {
				for _, rule := range config.Deny {
					if under(p, rule) {
						t.Errorf("%q passed, and can be read as %q", target, p)
					}
				}
				listed := slices.ContainsFunc(config.Allow, func(rule string) bool {
					return under(p, rule) && strings.HasPrefix(p, rule)
				})
				if len(config.Allow) > 0 && !listed {
					t.Errorf("%q is allowed, and can be read as %q", target, p)
				}
			}
		}
	})
}

func TestRefusalIsAnswered404(t *testing.T) {
	registry := prometheus.NewRegistry()
	g, err := New(Config{Deny: []string{"/metrics"}, Allow: []string{"/x", "/metrics"}}, "r", NewMetrics(registry))
	if err != nil {
		t.Fatal(err)
	}
	reached := ""
	h := g.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { reached = r.URL.Path }))
	ask := func(change func(*http.Request)) (int, string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		change(r)
		reached = ""
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	for target, want := range map[string]int{"/x/y": 200, "/metrics": 404, "/z": 404, "/x/%2e%2e/metrics": 404} {
		code, body := ask(func(r *http.Request) { r.URL, _ = url.Parse(target) })
		if code != want || (reached != "") != (want == 200) || want == 404 && body != "no such path\n" {
			t.Errorf("%s: %d %q, reached %q", target, code, body, reached)
		}
	}
	if code, _ := ask(func(r *http.Request) { r.URL = &url.URL{Scheme: "x", Opaque: "http://victim/x"} }); code != 404 {
		t.Errorf("an opaque target: %d", code)
	}
	got := map[string]float64{}
	for why := refusedDenied; int(why) < len(refusals); why++ {
		got[why.String()] = testutil.ToFloat64(g.refused[why])
	}
	if diff := cmp.Diff(map[string]float64{"denied": 1, "unlisted": 1, "ambiguous": 2}, got); diff != "" {
		t.Error(diff)
	}
}

func TestMistakes(t *testing.T) {
	for name, test := range map[string]struct {
		rules Config
		want  string
	}{
		"none":          {Config{}, "deny: missing (or allow)"},
		"everything":    {Config{Deny: []string{"/"}}, `deny[0]: "/" is not like /prefix`},
		"relative":      {Config{Allow: []string{"x"}}, `allow[0]: "x" is not like /prefix`},
		"slash at end":  {Config{Deny: []string{"/a", "/x/"}}, `deny[1]: "/x/" is not like /prefix`},
		"dots":          {Config{Deny: []string{"/x/../y"}}, `deny[0]: "/x/../y" is not like /prefix`},
		"encoded":       {Config{Deny: []string{"/%6d"}}, `deny[0]: "/%6d" is not like /prefix`},
		"empty":         {Config{Deny: []string{""}}, `deny[0]: "" is not like /prefix`},
		"one of a kind": {Config{Deny: []string{"/ok"}}, ""},
	} {
		err := test.rules.Validate()
		if (err == nil) != (test.want == "") || err != nil && err.Error() != test.want {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
		if _, made := New(test.rules, "r", nil); (made == nil) != (err == nil) {
			t.Errorf("%s: New says %v", name, made)
		}
	}
}

// The reasons are those that the document has.
func TestReasonsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/stack-proxy.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "stack_proxy_paths_refused_total") {
			for why := refusedDenied; int(why) < len(refusals); why++ {
				if !strings.Contains(line, why.String()) {
					t.Errorf("%s is not in: %s", why, line)
				}
			}
			return
		}
	}
	t.Error("the metric is in no line of docs/reference/stack-proxy.md")
}

func BenchmarkPasses(b *testing.B) {
	g := guard(b, Config{Deny: []string{"/metrics", "/healthcheck"}})
	target := []byte("/2009-04-04/meta-data/instance-id")
	for b.Loop() {
		if !g.Passes(target) {
			b.Fatal("refused")
		}
	}
}
