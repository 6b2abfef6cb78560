package rewrite

import (
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

func TestApply(t *testing.T) {
	seed := Config{Regex: "/tink-stack(/|$)(.*)", Replacement: "/$2"}
	strip := Config{StripPrefix: "/tink-stack"}
	tests := map[string]struct {
		rule Config
		path string
		want string // empty: no match
	}{
		"the seed":                     {seed, "/tink-stack/hook.ipxe", "/hook.ipxe"},
		"the seed, deeper":             {seed, "/tink-stack/a/b", "/a/b"},
		"the seed, bare":               {seed, "/tink-stack", "/"},
		"the seed, slash":              {seed, "/tink-stack/", "/"},
		"the seed, another":            {seed, "/tink-stacks/x", ""},
		"the seed, not first":          {seed, "/x/tink-stack/hook.ipxe", ""},
		"the seed, climbing in":        {seed, "/x/../tink-stack/hook.ipxe", "/hook.ipxe"},
		"the seed, climbing out":       {seed, "/tink-stack/../secret", ""},
		"the seed, climbing after":     {seed, "/tink-stack/a/../../etc/passwd", ""},
		"strip":                        {strip, "/tink-stack/hook.ipxe", "/hook.ipxe"},
		"strip, bare":                  {strip, "/tink-stack", "/"},
		"strip, slash at the end":      {strip, "/tink-stack/a/", "/a/"},
		"strip, another":               {strip, "/tink-stackhook", ""},
		"strip, double slashes":        {strip, "//tink-stack//hook", "/hook"},
		"strip, climbing out":          {strip, "/tink-stack/..", ""},
		"groups by name":               {Config{Regex: "/(?P<v>v[0-9]+)/(.*)", Replacement: "/$2/${v}x"}, "/v2/file", "/file/v2x"},
		"case":                         {Config{Regex: "(?i)/TINK/(.*)", Replacement: "/$1"}, "/tink/A", "/A"},
		"an or does not lose the left": {Config{Regex: "/a|/b", Replacement: "/c"}, "/x/b", ""},
		"a dollar sign":                {Config{Regex: "/a", Replacement: "/$$1"}, "/a", "/$1"},
		"made to climb":                {Config{Regex: "/a/(.*)x(.*)", Replacement: "/in/$1$2"}, "/a/.x./secret", "/secret"},
	}
	for name, test := range tests {
		rule, err := New(test.rule)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, ok := rule.Apply(test.path)
		if ok != (test.want != "") || ok && got != test.want {
			t.Errorf("%s: %s became %s, %t; want %q", name, test.path, got, ok, test.want)
		}
	}
}

func TestWrap(t *testing.T) {
	rule, err := New(Config{StripPrefix: "/tink-stack"})
	if err != nil {
		t.Fatal(err)
	}
	var uri string
	h := rule.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		uri = r.URL.RequestURI()
		if _, ok := w.(io.ReaderFrom); !ok {
			t.Error("no ReadFrom: no sendfile")
		}
	}))
	server := httptest.NewServer(h)
	defer server.Close()
	for from, want := range map[string]string{
		"/tink-stack/hook.ipxe?a=b&c=%2F": "/hook.ipxe?a=b&c=%2F",
		"/tink-stack/a%2Fb":               "/a%2Fb",
		"/tink-stack/%C3%A9%20x":          "/%C3%A9%20x",
		"/tink-stack?x":                   "/?x",
		"/tink-stack/%2e%2e/x":            "",
		"/tink-stack%2Fx":                 "/x",
		"/other":                          "",
	} {
		uri = ""
		answer, err := server.Client().Get(server.URL + from)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if uri != want || (want == "") != (answer.StatusCode == http.StatusNotFound) {
			t.Errorf("%s became %q, status %d; want %q", from, uri, answer.StatusCode, want)
		}
	}
	passing, err := New(Config{StripPrefix: "/tink-stack", PassOthers: true})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/other/%2F?x", nil)
	passing.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { uri = r.URL.RequestURI() })).
		ServeHTTP(httptest.NewRecorder(), r)
	if uri != "/other/%2F?x" {
		t.Errorf("passed on as %s", uri)
	}
}

func TestValidate(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                                     "stripPrefix: missing",
		"{stripPrefix: /a, regex: /b}":           "either",
		"{stripPrefix: a}":                       "not like /prefix",
		"{stripPrefix: /a/}":                     "not like /prefix",
		"{stripPrefix: /}":                       "not like /prefix",
		"{stripPrefix: /a, replacement: /}":      "there is no regex",
		"{regex: '/(', replacement: /}":          "regex: error parsing regexp",
		"{regex: '/(a)(?=b)', replacement: /$1}": "regex: error parsing regexp",
		"{regex: /a, replacement: b}":            "does not begin",
		"{regex: '/(a)', replacement: /$1x}":     `no group "1x"`,
		"{regex: '/(a)', replacement: '/${2}'}":  `no group "2"`,
	} {
		var c Config
		if err := yaml.UnmarshalStrict([]byte(text), &c); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func FuzzApply(f *testing.F) {
	f.Add("/tink-stack(/|$)(.*)", "/$2", "/tink-stack/../x")
	f.Add("/a/(.*)x(.*)", "/in/$1$2", "/a/.x./secret")
	f.Fuzz(func(t *testing.T, regex, replacement, p string) {
		rule, err := New(Config{Regex: regex, Replacement: replacement})
		if err != nil {
			return
		}
		out, _ := rule.Apply(p)
		if !strings.HasPrefix(out, "/") || path.Clean(out) != strings.TrimSuffix(out, "/") && out != "/" {
			t.Errorf("%q became %q", p, out)
		}
	})
}
