package web

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"
)

// open is a gate that lets everything pass.
type open struct{}

func (*open) Ready() error                        { return nil }
func (*open) Wrap(next http.Handler) http.Handler { return next }
func (*open) PassesTarget() func([]byte) bool     { return nil }

// A client that has connected when a drain begins, and asks at once, is answered.
func TestDrainAnswersWhoHasConnected(t *testing.T) {
	withAndWithout(t, testDrainAnswersWhoHasConnected)
}

func testDrainAnswersWhoHasConnected(t *testing.T, start starter) {
	certificates := httptest.NewUnstartedServer(nil)
	certificates.StartTLS()
	defer certificates.Close()
	for name, s := range map[string]Settings{
		"plain": {}, "net/http": {Gate: &open{}},
		"TLS": {TLS: &tls.Config{Certificates: certificates.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			addr, _ := raw(t, fine)
			s.Pool, s.Drain = pool(addr), time.Minute
			r := start(t, s)
			c := r.talk(t)
			if s.TLS != nil {
				secured := tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
				if err := secured.Handshake(); err != nil {
					t.Fatal(err)
				}
				c = talk{secured, bufio.NewReader(secured)}
			}
			for r.Active() == 0 {
				time.Sleep(time.Millisecond)
			}
			stopped := make(chan error, 1)
			go func() { stopped <- r.stop() }()
			for {
				conn, err := net.Dial("tcp", r.Addr().String())
				if errors.Is(err, syscall.ECONNREFUSED) {
					break
				}
				if err == nil {
					_ = conn.Close()
				}
			}
			_, _ = io.WriteString(c.Conn, plainGet)
			response, err := http.ReadResponse(c.Reader, nil)
			if err != nil {
				t.Fatalf("got %v", err)
			}
			if body, err := io.ReadAll(response.Body); string(body) != "ok" {
				t.Errorf("got %q, %v", body, err)
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// A front that will leave soon still takes connections, and ends each behind its next answer: a client that keeps its
// connection is elsewhere when the front ends.
func TestFrontThatLeavesEndsConnections(t *testing.T) {
	withAndWithout(t, func(t *testing.T, start starter) {
		addr := backend(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
		for name, s := range map[string]Settings{"plain": {}, "net/http": {Gate: &open{}}} {
			t.Run(name, func(t *testing.T) {
				s.Pool = pool(addr)
				r := start(t, s)
				before := r.talk(t)
				if got, _ := before.ask(t, plainGet); got.Close {
					t.Fatal("a connection ends before the front leaves")
				}
				r.Leave()
				for _, c := range []talk{before, r.talk(t)} {
					if got, body := c.ask(t, plainGet); got.StatusCode != 200 || body != "ok" || !got.Close {
						t.Errorf("got %d %q, close %v", got.StatusCode, body, got.Close)
					}
				}
			})
		}
	})
}
