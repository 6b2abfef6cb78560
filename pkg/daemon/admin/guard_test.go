package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A page of somebody else in the same browser gets nothing, neither by a name that was made to lead here nor by a request
// across sites; whoever follows a link does. Metrics are for programs, by any name, but through the loopback interface,
// where such a page asks by kubectl port-forward.
func TestPagesOfOthersAreRefused(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	server := New(Options{
		Registry: NewRegistry(nil), Handlers: map[string]http.Handler{"GET /page": page, "POST /page": page}, Hosts: []string{"boots.example.org"},
	})
	for name, test := range map[string]struct {
		host, site, mode, path string
		code                   int
	}{
		"address":                 {"192.0.2.2:9070", "", "", "/page", 200},
		"IPv6":                    {"[2001:db8::1]:9070", "", "", "/page", 200},
		"IPv6 without a port":     {"[::1]", "", "", "/page", 200},
		"localhost":               {"localhost:9070", "same-origin", "cors", "/page", 200},
		"Service":                 {"stack-boots:9070", "", "", "/page", 200},
		"Service, in full":        {"stack-boots.tinkerbell.svc.cluster.local.:9070", "", "", "/page", 200},
		"known":                   {"Boots.Example.org", "none", "navigate", "/page", 200},
		"rebound":                 {"evil.example:9070", "same-origin", "navigate", "/page", 421},
		"rebound, like a Service": {"stack-boots.svc.evil.example", "", "", "/page", 421},
		"ends like a known one":   {"evilboots.example.org", "", "", "/page", 421},
		"request of another page": {"localhost:9070", "cross-site", "cors", "/page", 403},
		"picture of another page": {"localhost:9070", "same-site", "no-cors", "/page", 403},
		"link on another page":    {"localhost:9070", "cross-site", "navigate", "/page", 200},
		"multicast name":          {"evil.local:9070", "", "", "/page", 421},
		"change":                  {"localhost:9070", "same-origin", "navigate", "POST /page", 200},
		"change by a program":     {"localhost:9070", "", "", "POST /page", 200},
		"change by another page":  {"localhost:9070", "cross-site", "navigate", "POST /page", 403},
		"metrics, for a name":     {"node.example:9070", "", "", "/metrics", 200},
		"metrics, rebound":        {"evil.example:9070", "", "", "loopback /metrics", 421},
		"metrics, forwarded":      {"localhost:9070", "", "", "loopback /metrics", 200},
		"profile, rebound":        {"evil.example:9070", "", "", "loopback /debug/pprof/", 421},
		"profile, as a picture":   {"localhost:9070", "cross-site", "no-cors", "loopback /debug/pprof/", 403},
		"profile, forwarded":      {"localhost:9070", "", "", "loopback /debug/pprof/", 200},
		"probes, for a name":      {"evil.example:9070", "", "", "/healthz", 200},
	} {
		t.Run(name, func(t *testing.T) {
			how, path, _ := strings.Cut(test.path, " ")
			request := httptest.NewRequest(http.MethodGet, cmp.Or(path, how), http.NoBody)
			switch how {
			case http.MethodPost:
				request.Method = how
			case "loopback":
				request.RemoteAddr = "127.0.0.1:5"
			}
			request.Host = test.host
			request.Header.Set("Sec-Fetch-Site", test.site)
			request.Header.Set("Sec-Fetch-Mode", test.mode)
			recorder := httptest.NewRecorder()
			server.mux.ServeHTTP(recorder, request)
			if recorder.Code != test.code {
				t.Errorf("got %d %s, want %d", recorder.Code, recorder.Body, test.code)
			}
		})
	}
}
