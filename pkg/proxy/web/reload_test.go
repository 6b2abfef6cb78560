package web

import (
	"io"
	"net/http"
	"testing"
	"time"
)

// refusing is a gate that lets nothing pass.
type refusing struct{}

func (*refusing) Ready() error { return nil }

func (*refusing) PassesTarget() func([]byte) bool { return nil }
func (*refusing) Wrap(http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
}

// A gate that comes by a reload holds for the next request on whatever connection, also where the same reload makes
// another server that leaves the open connections to the one before.
func TestGateByReload(t *testing.T) { withAndWithout(t, testGateByReload) }

func testGateByReload(t *testing.T, start starter) {
	for name, header := range map[string]time.Duration{"same server": 0, "another server": 9 * time.Second} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "secret")
			}))})
			plain, begun, split := r.talk(t), r.talk(t), r.talk(t)
			for _, c := range []talk{plain, begun} {
				if _, body := c.ask(t, plainGet); body != "secret" {
					t.Fatalf("got %q", body)
				}
			}
			_, _ = io.WriteString(begun.Conn, plainGet[:9])
			_, _ = io.WriteString(split.Conn, plainGet[:9])
			for deadline := time.Now().Add(20 * time.Second); r.handed() < 2; time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatal("the heads in pieces did not arrive")
				}
			}
			r.Update(Settings{
				Pool: r.current.Load().settings.Pool, Gate: &refusing{}, Drain: time.Minute, Timeouts: Timeouts{Header: header},
			})
			for i, c := range []talk{begun, split} {
				if response, body := c.ask(t, plainGet[9:]); response.StatusCode != http.StatusUnauthorized {
					t.Errorf("begun request %d got %d %q", i, response.StatusCode, body)
				}
			}
			if header == 0 {
				if response, body := plain.ask(t, plainGet); response.StatusCode != http.StatusUnauthorized {
					t.Errorf("the plain connection got %d %q", response.StatusCode, body)
				}
			}
		})
	}
}

// handed is how many connections net/http's servers have begun to read from.
func (r running) handed() int {
	n := 0
	for c := range r.Front.connections.open.All() {
		if !c.inEngine() && c.spoke.Load() {
			n++
		}
	}
	return n
}

// Of routes that share a port, one is served by files and, after a reload, by a backend.
func TestSharedPortFromFilesToBackend(t *testing.T) {
	first := Settings{Hosts: []string{"a.example"}, Handler: http.NewServeMux()}
	second := Settings{Hosts: []string{"b.example"}, Handler: http.NewServeMux()}
	first.Sites = []Site{{Route: "second", Settings: second}}
	r := start(t, first)
	second.Handler, second.Pool = nil, pool(backend(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "here")
	}))
	first.Sites = []Site{{Route: "second", Settings: second}}
	r.Update(first)
	if _, body := r.talk(t).ask(t, "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n"); body != "here" {
		t.Errorf("got %q", body)
	}
}
