package web

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// What a gRPC endpoint gets by HTTP/2 is of the same grammar, and it is not blamed for what its client wrote.
func TestMalformedGRPCIsRefused(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	var mu sync.Mutex
	var seen []string
	p := pool(h2c(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, strings.Join([]string{r.Method, r.RequestURI, r.Host, r.Header.Get("X")}, " "))
		w.Header().Set(headerStatus, "0")
	}))
	r := start(t, Settings{Pool: p, GRPC: true, TLS: &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"},
	}})
	for name, test := range map[string]struct{ method, path, authority, value, want string }{
		"plain":              {"POST", "/s/M", "h", "y", "POST /s/M h y"},
		"space in path":      {"POST", "/s/M N", "h", "y", ""},
		"control in path":    {"POST", "/s/M\x01", "h", "y", ""},
		"scheme in path":     {"POST", "http://v/s/M", "h", "y", ""},
		"fragment":           {"POST", "/s/M#a", "h", "y", ""},
		"quotes in path":     {"POST", "/s/M\"|", "h", "y", "POST /s/M%22%7C h y"},
		"above ASCII":        {"POST", "/s/\xff", "h", "y", "POST /s/%FF h y"},
		"asterisk":           {"POST", "*", "h", "y", ""},
		"space in method":    {"PO ST", "/s/M", "h", "y", ""},
		"space in authority": {"POST", "/s/M", "h i", "y", ""},
		"user in authority":  {"POST", "/s/M", "u@h", "y", ""},
		"space about value":  {"POST", "/s/M", "h", " \ty ", "POST /s/M h y"},
	} {
		statusByHTTP2(t, r.Addr().String(), []hpack.HeaderField{
			{Name: ":method", Value: test.method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: test.authority},
			{Name: ":path", Value: test.path}, {Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"},
			{Name: "x", Value: test.value},
		}, "")
		mu.Lock()
		if got := strings.Join(seen, ";"); got != test.want {
			t.Errorf("%s: the endpoint saw %q, want %q", name, got, test.want)
		}
		seen = nil
		mu.Unlock()
	}
	blameless(t, p)
}
