package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"

	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/route"
)

// TestTLSBeforeTCP ends TLS 1.3 with client certificates in front of a plain TCP backend that speaks HTTP/2, on a
// connection that stays while the certificate is replaced.
func TestTLSBeforeTCP(t *testing.T) {
	o := newOutside(t)
	listen := free(t)
	text := strings.NewReplacer("LISTEN", listen.String(), "TINK", o.tinkServer(t), "DIR", o.dir).Replace(`
routes:
- name: tink
  protocol: tcp
  listen: LISTEN
  backends: TINK
  tls:
    certificates: {certificate: DIR/tls.crt, key: DIR/tls.key}
    minVersion: "1.3"
    clientCA: DIR/ca.crt
    alpn: [h2]
`)
	own, err := tls.LoadX509KeyPair(filepath.Join(o.dir, "tls.crt"), filepath.Join(o.dir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]})
	if err := os.WriteFile(filepath.Join(o.dir, "ca.crt"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	table, err := route.Parse([]byte(text), route.Defaults{Drain: setting.Duration(5 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, Options{Table: table})
	ready(t, p)
	roots := o.roots
	connect := func(change func(*tls.Config)) (*tls.Conn, error) {
		config := &tls.Config{
			RootCAs: roots, ServerName: tinkHost, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{own},
		}
		if change != nil {
			change(config)
		}
		conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", listen.String())
		if err != nil {
			return nil, err
		}
		// With TLS 1.3 the server's opinion of a client's certificate comes after the handshake.
		secure := conn.(*tls.Conn)
		_ = secure.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err = io.WriteString(secure, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		if err == nil {
			_, err = io.ReadFull(secure, make([]byte, 9)) // the server's SETTINGS
		}
		if err != nil {
			_ = secure.Close()
			return nil, err
		}
		t.Cleanup(func() { _ = secure.Close() })
		return secure, nil
	}
	first, err := connect(nil)
	if err != nil || first.ConnectionState().NegotiatedProtocol != "h2" {
		t.Fatalf("got %v", err)
	}
	for name, change := range map[string]func(*tls.Config){
		"TLS 1.2":         func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 },
		"no certificate":  func(c *tls.Config) { c.Certificates = nil },
		"another's names": func(c *tls.Config) { c.ServerName = "example.com" },
		"other protocols": func(c *tls.Config) { c.NextProtos = []string{"smtp"} },
	} {
		if _, err := connect(change); err == nil {
			t.Errorf("%s: let in", name)
		}
	}

	o.certificate(t) // another one for the same names
	roots = o.roots
	testwait.Success(t, "the new certificate is in use", func() error {
		_, err := connect(nil)
		var unknown x509.UnknownAuthorityError
		if err != nil && !errors.As(err, &unknown) {
			t.Fatalf("the new certificate: %v", err)
		}
		return err
	})
	// The connection from before goes on: a PING is answered.
	_ = first.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.WriteString(first, "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(first, make([]byte, 17)); err != nil {
		t.Error(err)
	}
}

func ready(t *testing.T, p testProxy) {
	t.Helper()
	testwait.Success(t, "the proxy is ready", p.Ready)
}

// TestTLSBehindTCP makes TLS of what a plain TCP client sends, to one of two endpoints: the other has the wrong
// certificate, and no connection may end there. A reload to another CA puts both out of reach.
func TestTLSBehindTCP(t *testing.T) {
	o := newOutside(t)
	var stranger outside
	stranger.dir = t.TempDir()
	stranger.certificate(t)
	listen := free(t)
	text := strings.NewReplacer("LISTEN", listen.String(), "RIGHT", o.secureServer(t), "WRONG", stranger.secureServer(t), "DIR", o.dir).
		Replace(`
routes:
- name: web
  protocol: tcp
  listen: LISTEN
  backends: [RIGHT, WRONG]
  backendTLS: {ca: DIR/tls.crt, name: ` + tinkHost + `}
`)
	apply := func(text string) route.Table {
		t.Helper()
		table, err := route.Parse([]byte(text), route.Defaults{Drain: setting.Duration(time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		return table
	}
	p := start(t, Options{Table: apply(text)})
	ready(t, p)
	ask := func() (string, error) {
		transport := &http.Transport{DisableKeepAlives: true}
		answer, err := (&http.Client{Transport: transport, Timeout: 10 * time.Second}).
			Post("http://"+listen.String()+"/", "text/plain", strings.NewReader("hello"))
		if err != nil {
			return "", err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		return string(body), err
	}
	for range 6 {
		if got, err := ask(); err != nil || got != "hello" {
			t.Errorf("got %q, %v", got, err)
		}
	}
	if err := p.Apply(t.Context(), apply(strings.Replace(text, o.dir, stranger.dir, 1))); err != nil {
		t.Fatal(err)
	}
	if got, err := ask(); err != nil || got != "hello" { // now the other is the right one
		t.Errorf("after the reload: got %q, %v", got, err)
	}
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
