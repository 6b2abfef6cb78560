package proxy

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/tinkerbell/stack/pkg/route"
)

// warnings collects the log.
type warnings struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *warnings) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *warnings) take() (lines []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for line := range strings.Lines(w.text.String()) {
		if strings.Contains(line, "pass-through to a backend of an HTTP route") {
			lines = append(lines, line)
		}
	}
	w.text.Reset()
	return lines
}

// The log tells of a pass-through to a backend that believes us when it comes, and not again while it lasts.
func TestWarnsOfPassThrough(t *testing.T) {
	backend := hello(t, "a")
	through := row("through", route.TCP, free(t), backend)
	web := row("web", route.HTTP, free(t), backend)
	both, alone := table(web, through), table(web)
	var log warnings
	p := start(t, Options{Table: both, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	expect := func(when string, want int) {
		t.Helper()
		got := log.take()
		if len(got) != want {
			t.Errorf("%s: %q, want %d", when, got, want)
		}
		for _, line := range got {
			if !strings.Contains(line, "level=WARN") || !strings.Contains(line, "route=through") ||
				!strings.Contains(line, "http_route=web") || !strings.Contains(line, "backend="+backend.String()) {
				t.Error(line)
			}
		}
	}
	expect("at the start", 1)
	changed := table(web, through)
	changed.Routes[0].Limits.Connections = 5
	p.apply(t, changed)
	expect("at a reload that changes something else", 0)
	p.apply(t, alone)
	expect("without it", 0)
	through.Listen = []route.Listen{free(t)} // the other one may take a while to close
	p.apply(t, table(web, through))
	expect("when it comes again", 1)
	quiet := through
	quiet.ProxyProtocol.Send = "v2"
	p.apply(t, table(web, quiet))
	expect("where the backend is told the client", 0)
}

// believing is Tinkerbell's server, as far as it goes by addresses: whoever is called so by a trusted peer, which the
// proxy is, gets that one's secrets.
func believing(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain")
	_, _ = io.WriteString(w, r.URL.Path+" of "+r.Header.Get("X-Forwarded-For"))
}

// By the preset of the one binary, with the HTTPS route of the docs, no machine gets another's metadata, whatever it says and by which protocol; and no
// machine gets at metrics and the user interface.
func TestNoMachinePassesForAnother(t *testing.T) {
	o := newOutside(t)
	pair, err := tls.LoadX509KeyPair(filepath.Join(o.dir, "tls.crt"), filepath.Join(o.dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	plain := httptest.NewServer(http.HandlerFunc(believing))
	defer plain.Close()
	secure := httptest.NewUnstartedServer(http.HandlerFunc(believing))
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	secure.StartTLS()
	defer secure.Close()

	docs, err := os.ReadFile("../../docs/stack-proxy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(docs), "<!-- begin https -->\n```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	text = strings.NewReplacer("/tinkerbell/ca.crt", o.dir+"/tls.crt", "/tls/", o.dir+"/", "name: tinkerbell}", "name: "+filesHost+"}").Replace(text)
	made, err := route.Parse([]byte(text), route.Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	urls := map[string]string{}
	var routes []route.Route
	for _, r := range made.Routes {
		listen := free(t)
		switch r.Listen[0].AddrPort().Port() {
		case 7080:
			r.Backends, urls["http"] = []route.Backend{backendAt(plain.Listener.Addr())}, "http://"+listen.String()
		case 7443:
			r.Backends, urls["https"] = []route.Backend{backendAt(secure.Listener.Addr())}, "https://"+listen.String()
		default:
			continue
		}
		r.Listen = []route.Listen{listen}
		routes = append(routes, r)
	}
	p := start(t, Options{Table: table(routes...)})
	ready(t, p)

	for scheme, url := range urls {
		for _, h2 := range []bool{false, true} {
			transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: o.roots, ServerName: filesHost}, ForceAttemptHTTP2: h2}
			defer transport.CloseIdleConnections()
			get := func(path string, header ...string) (int, string) {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(header); i += 2 {
					r.Header[header[i]] = []string{header[i+1]}
				}
				answer, err := transport.RoundTrip(r)
				if err != nil {
					t.Fatalf("%s, HTTP/2 %v: %v", scheme, h2, err)
				}
				defer answer.Body.Close()
				body, _ := io.ReadAll(answer.Body)
				if want := map[bool]int{false: 1, true: 2}[h2 && scheme == "https"]; answer.ProtoMajor != want {
					t.Errorf("%s: HTTP/%d, want %d", scheme, answer.ProtoMajor, want)
				}
				return answer.StatusCode, string(body)
			}
			const path = "/2009-04-04/user-data"
			for _, claim := range [][]string{
				nil, {"X-Forwarded-For", "192.0.2.50"}, {"X_Forwarded_For", "192.0.2.50"}, {"X-Real-Ip", "192.0.2.50"},
				{"Forwarded", "for=192.0.2.50"}, {"X-Forwarded-For", "192.0.2.50", "Te", "trailers"},
				{"X-Forwarded-For", "192.0.2.50", "Via", "1.1 x"},
			} {
				if code, body := get(path, claim...); code != http.StatusOK || body != path+" of 127.0.0.1" {
					t.Errorf("%s, HTTP/2 %v, %q: %d %q", scheme, h2, claim, code, body)
				}
			}
			for _, hidden := range []string{"/metrics", "/smee/metrics", "/login", "/", "/ipxe/../metrics", "/ipxe/%2e%2e/login"} {
				if code, body := get(hidden); code != http.StatusNotFound || strings.Contains(body, " of ") {
					t.Errorf("%s, HTTP/2 %v, %s: %d %q", scheme, h2, hidden, code, body)
				}
			}
		}
	}
}
