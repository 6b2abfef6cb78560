package host

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// serve answers a request as the fronts do, with the name of its list.
func serve(m *Mux, w http.ResponseWriter, r *http.Request, names ...string) {
	if at := m.Choose(r); at != None {
		_, _ = io.WriteString(w, names[at])
		return
	}
	m.Refuse(w, r)
}

func TestMux(t *testing.T) {
	m, err := New([]Hosts{
		{"tinkerbell-server.orch.example.org"},
		{"tinkerbell-nginx.orch.example.org", "192.0.2.2", "2001:db8::1"},
		{"*.orch.example.org"},
	})
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		host, sni, want string
		code            int
	}{
		"name":           {"tinkerbell-server.orch.example.org", "", "tink", 200},
		"port":           {"tinkerbell-nginx.orch.example.org:443", "", "files", 200},
		"case and dot":   {"Tinkerbell-NGINX.orch.example.org.", "", "files", 200},
		"wildcard":       {"other.orch.example.org", "", "wild", 200},
		"two labels":     {"a.b.orch.example.org", "", "no such host", 404},
		"address":        {"192.0.2.2:443", "", "files", 200},
		"IPv6":           {"[2001:DB8::1]:443", "", "files", 200},
		"IPv6, no port":  {"[2001:db8::1]", "", "files", 200},
		"other":          {"example.org", "", "no such host", 404},
		"none":           {"", "", "no such host", 404},
		"same in SNI":    {"tinkerbell-nginx.orch.example.org", "tinkerbell-nginx.orch.example.org", "files", 200},
		"other in SNI":   {"tinkerbell-server.orch.example.org", "tinkerbell-nginx.orch.example.org", "the connection is for another host", 421},
		"same by route":  {"192.0.2.2", "tinkerbell-nginx.orch.example.org", "files", 200},
		"unknown in SNI": {"tinkerbell-server.orch.example.org", "x", "the connection is for another host", 421},
	}
	for name, test := range tests {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = test.host
		if test.sni != "" {
			r.TLS = &tls.ConnectionState{ServerName: test.sni}
		}
		w := httptest.NewRecorder()
		serve(m, w, r, "tink", "files", "wild")
		if got := strings.TrimSpace(w.Body.String()); got != test.want || w.Code != test.code {
			t.Errorf("%s: got %d %q, want %d %q", name, w.Code, got, test.code, test.want)
		}
	}
	all, err := New([]Hosts{nil, {"a.example.org"}})
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]string{"": "any", "b": "any", "a.example.org": "a"} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		serve(all, w, r, "any", "a")
		if w.Body.String() != want {
			t.Errorf("%q: got %q, want %q", host, w.Body, want)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, list := range [][]Hosts{
		{nil, {"*"}}, {{"a.b"}, {"A.b"}}, {{"a b"}}, {{"a.*.b"}}, {{"http://a"}}, {{"a:443"}}, {{""}},
		{{strings.Repeat("a.", 130) + "a"}},
	} {
		if _, err := New(list); err == nil {
			t.Errorf("accepted %v", list)
		}
	}
	if err := (Hosts{"a", "*.b-c.d", "192.0.2.1", "*", "xn--abc.org"}).Validate(); err != nil {
		t.Error(err)
	}
}

func FuzzHost(f *testing.F) {
	f.Add("a.example.org:443")
	f.Add("[::1]:80")
	m, err := New([]Hosts{{"a.example.org"}, {"*.example.org"}})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if canonical(host) == "a.example.org" != (m.Index(host) == 0) {
			t.Errorf("%q is found otherwise than it is written", host)
		}
	})
}
