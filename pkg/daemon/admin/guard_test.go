package admin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
)

// A page of somebody else in the same browser gets nothing, neither by a name that was made to lead here nor by a request
// across sites; whoever follows a link does. Metrics and probes are for programs.
func TestPagesOfOthersAreRefused(t *testing.T) {
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	server := New(Options{
		Registry: NewRegistry(nil), Handlers: map[string]http.Handler{"GET /page": page}, Hosts: []string{"boots.example.org"},
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
		"metrics, for a name":     {"evil.example:9070", "", "", "/metrics", 200},
		"probes, for a name":      {"evil.example:9070", "", "", "/healthz", 200},
	} {
		t.Run(name, func(t *testing.T) {
			request := httptest.NewRequest(http.MethodGet, test.path, http.NoBody)
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
