package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/route"
)

func ready(t *testing.T, p testProxy) {
	t.Helper()
	testwait.Success(t, "the proxy is ready", p.Ready)
}

// TestWrongCertificateOfABackendIsNamed: the client, such as helm test, is told which of the ways to be wrong it is.
func TestWrongCertificateOfABackendIsNamed(t *testing.T) {
	made := func(validity time.Duration) *outside {
		o := &outside{dir: t.TempDir()}
		o.certificateFor(t, validity)
		return o
	}
	right, stranger, late := made(time.Hour), made(time.Hour), made(-time.Minute)
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	for name, test := range map[string]struct {
		backend string
		ca      *outside
		name    string
		want    string
	}{
		"another CA":   {right.secureServer(t), stranger, tinkHost, "by another CA"},
		"another name": {right.secureServer(t), right, "tinkerbell.example.net", "for another name"},
		"expired":      {late.secureServer(t), late, tinkHost, "has expired"},
		"no TLS":       {plain.Listener.Addr().String(), right, tinkHost, "does not speak TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			listen := free(t).String()
			table, err := route.Parse([]byte(strings.NewReplacer("LISTEN", listen, "BACKEND", test.backend, "DIR", test.ca.dir, "NAME", test.name).
				Replace(`
routes:
- {name: https, protocol: http, listen: LISTEN, backends: BACKEND, backendTLS: {ca: DIR/tls.crt, name: NAME}}
`)), route.Defaults{Drain: setting.Duration(time.Second)})
			if err != nil {
				t.Fatal(err)
			}
			ready(t, start(t, Options{Table: table}))
			answer, err := http.Get("http://" + listen + "/2009-04-04/")
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			body, err := io.ReadAll(answer.Body)
			if err != nil || answer.StatusCode != http.StatusBadGateway || !strings.Contains(string(body), test.want) {
				t.Errorf("got %s: %q, %v; want %q", answer.Status, body, err, test.want)
			}
		})
	}
}
