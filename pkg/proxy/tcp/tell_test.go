package tcp

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// tale is an event for comparison.
type tale struct {
	Outcome          boot.Outcome
	Client, Endpoint string
	Bytes            uint64
	Place, Reason    string
	Others           string
}

// tales are the first events of a front.
type tales struct {
	mu   sync.Mutex
	told []tale
}

func (t *tales) add(e *boot.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.told) == 64 {
		return
	}
	told := tale{
		Outcome: e.Outcome, Client: boot.Addr(e.Client).String(), Bytes: e.Bytes,
		Place: string(e.Text(boot.Place)), Reason: string(e.Text(boot.Reason)),
	}
	if at := boot.Addr(e.Endpoint); at.IsValid() {
		told.Endpoint = netip.AddrPortFrom(at, e.Port).String()
	}
	if e.Kind != boot.Stream || e.Route == 0 || len(e.Text(boot.File)) > 0 {
		told.Others = fmt.Sprintf("kind %d of port %d; ", e.Kind, e.Route)
	}
	if now := time.Now().UnixNano(); e.At > now || now-e.At > int64(time.Hour) || e.Took < 0 || e.Took > time.Hour ||
		(e.Took == 0) != (e.Outcome == boot.Began) {
		told.Others += fmt.Sprintf("at %d, took %v", e.At, e.Took)
	}
	t.told = append(t.told, told)
}

func (t *tales) all() []tale {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]tale(nil), t.told...)
}

// await waits for n events.
func (t *tales) await(tb *testing.T, n int) []tale {
	tb.Helper()
	for end := time.Now().Add(20 * time.Second); len(t.all()) < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("told %+v, want %d events", t.all(), n)
		}
	}
	return t.all()
}

// TestTells has the events of connections.
func TestTells(t *testing.T) {
	base := tale{Client: "127.0.0.1", Place: "r"}
	tests := map[string]struct {
		settings Settings
		serve    func(*net.TCPConn)        // nil: nobody listens
		use      func(*testing.T, running) // until it has ended
		want     func(tale) tale
		alone    bool // it does not begin
	}{
		"in order": {
			serve: echo,
			use: func(t *testing.T, r running) {
				c := r.dial(t)
				_, _ = c.Write(make([]byte, 100<<10))
				_ = c.CloseWrite()
				if n, err := io.Copy(io.Discard, c); n != 100<<10 || err != nil {
					t.Errorf("got %d bytes, %v", n, err)
				}
			},
			want: func(e tale) tale { e.Outcome, e.Bytes = boot.Done, 100<<10; return e },
		},
		"the endpoint resets": {
			serve: func(c *net.TCPConn) {
				_, _ = c.Read(make([]byte, 1))
				_ = c.SetLinger(0)
			},
			use: func(t *testing.T, r running) {
				c := r.dial(t)
				_, _ = c.Write([]byte("ask"))
				_, _ = io.Copy(io.Discard, c)
			},
			want: func(e tale) tale { e.Outcome, e.Reason = boot.Torn, "reset"; return e },
		},
		"nothing moves": {
			settings: Settings{Idle: 100 * time.Millisecond}, serve: echo,
			use:  func(t *testing.T, r running) { _, _ = r.dial(t).Read(make([]byte, 1)) },
			want: func(e tale) tale { e.Outcome, e.Reason = boot.Torn, "idle"; return e },
		},
		"drained": {
			settings: Settings{Drain: time.Millisecond}, serve: echo,
			use: func(t *testing.T, r running) {
				c := r.dial(t)
				_, _ = c.Write([]byte("x"))
				_, _ = io.ReadFull(c, make([]byte, 1))
				_ = r.stop()
			},
			want: func(e tale) tale { e.Outcome, e.Reason, e.Bytes = boot.Torn, "drained", 1; return e },
		},
		"nobody listens": {
			use:   func(_ *testing.T, r running) { _ = r.refusal() },
			want:  func(e tale) tale { e.Outcome, e.Reason, e.Endpoint = boot.NoServer, "backend", ""; return e },
			alone: true,
		},
		"no PROXY header": {
			settings: Settings{AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, serve: echo,
			use: func(t *testing.T, r running) {
				c := r.dial(t)
				_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
				_, _ = io.Copy(io.Discard, c)
			},
			want:  func(e tale) tale { e.Outcome, e.Reason, e.Endpoint = boot.Refused, "proxy_header", ""; return e },
			alone: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			at := refused(t)
			if test.serve != nil {
				at = backend(t, test.serve)
			}
			r := start(t, test.settings, at)
			test.use(t, r)
			began, end := base, base
			began.Outcome, began.Endpoint, end.Endpoint = boot.Began, at.String(), at.String()
			want := []tale{began, test.want(end)}
			if test.alone {
				want = want[1:]
			}
			if diff := cmp.Diff(want, r.told.await(t, len(want))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTellsOfTheClientBehindAProxy has events with the client of the PROXY header.
func TestTellsOfTheClientBehindAProxy(t *testing.T) {
	r := start(t, Settings{AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, backend(t, echo))
	c := r.dial(t)
	_, _ = io.WriteString(c, "PROXY TCP4 192.0.2.7 192.0.2.2 4711 42113\r\nx")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if got := r.told.await(t, 1)[0].Client; got != "192.0.2.7" {
		t.Errorf("got %s", got)
	}
}

// TestToldRefusalsAreBounded refuses so many connections that not all have an event.
func TestToldRefusalsAreBounded(t *testing.T) {
	told := 0
	f := &Front{listener: &sock.Listener{}, config: Config{Event: func(*boot.Event) { told++ }}}
	for range 10 * boot.AllowanceRate {
		s := &session{front: f}
		s.refuse(refusedClient)
		s.tellEnd()
	}
	if told < boot.AllowanceRate || told > 5*boot.AllowanceRate { // a slow machine takes more than a second for it
		t.Errorf("told of %d", told)
	}
}
