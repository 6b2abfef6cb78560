package tcp

import (
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/record"
	"github.com/tinkerbell/stack/pkg/record/recordtest"
)

// TestRecords has what is recorded of connections.
func TestRecords(t *testing.T) {
	base := record.Exchange{Kind: record.Stream, Route: "r", Client: netip.MustParseAddr("127.0.0.1")}
	tests := map[string]struct {
		settings Settings
		serve    func(*net.TCPConn)        // nil: nobody listens
		use      func(*testing.T, running) // until it has ended
		want     func(*record.Exchange)
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
			want: func(e *record.Exchange) { e.Bytes = 100 << 10 },
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
			want: func(e *record.Exchange) { e.Outcome, e.Reason = record.Torn, "reset" },
		},
		"nothing moves": {
			settings: Settings{Idle: 100 * time.Millisecond}, serve: echo,
			use:  func(t *testing.T, r running) { _, _ = r.dial(t).Read(make([]byte, 1)) },
			want: func(e *record.Exchange) { e.Outcome, e.Reason = record.Torn, "idle" },
		},
		"drained": {
			settings: Settings{Drain: time.Millisecond}, serve: echo,
			use: func(t *testing.T, r running) {
				c := r.dial(t)
				_, _ = c.Write([]byte("x"))
				_, _ = io.ReadFull(c, make([]byte, 1))
				_ = r.stop()
			},
			want: func(e *record.Exchange) { e.Outcome, e.Reason, e.Bytes = record.Torn, "drained", 1 },
		},
		"evicted for others": {
			serve: echo,
			use: func(t *testing.T, r running) {
				c := r.dial(t)
				_, _ = c.Write([]byte("x"))
				_, _ = io.ReadFull(c, make([]byte, 1))
				for _, s := range slices.Collect(r.conns.All()) {
					s.Evict()
				}
			},
			want: func(e *record.Exchange) { e.Outcome, e.Reason, e.Bytes = record.Torn, "evicted", 1 },
		},
		"nobody listens": {
			use: func(_ *testing.T, r running) { _ = r.refusal() },
			want: func(e *record.Exchange) {
				e.Outcome, e.Reason, e.Endpoint = record.NoServer, "backend", netip.AddrPort{}
			},
			alone: true,
		},
		"no PROXY header": {
			settings: Settings{AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, serve: echo,
			use: func(t *testing.T, r running) {
				c := r.dial(t)
				_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
				_, _ = io.Copy(io.Discard, c)
			},
			want: func(e *record.Exchange) {
				e.Outcome, e.Reason, e.Endpoint = record.Refused, "proxy_header", netip.AddrPort{}
			},
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
			began.Outcome, began.Endpoint, end.Endpoint = record.Began, at, at
			test.want(&end)
			want := []record.Exchange{began, end}
			if test.alone {
				want = want[1:]
			}
			if diff := recordtest.Diff(want, r.log.Await(t, len(want))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestRecordsTheClientBehindAProxy, which the PROXY header names.
func TestRecordsTheClientBehindAProxy(t *testing.T) {
	r := start(t, Settings{AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, backend(t, echo))
	c := r.dial(t)
	_, _ = io.WriteString(c, "PROXY TCP4 192.0.2.7 192.0.2.2 4711 42113\r\nx")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if got := r.log.Await(t, 1)[0].Client; got != netip.MustParseAddr("192.0.2.7") {
		t.Errorf("got %s", got)
	}
}

// TestRecordsProgress of a long connection: now and then, and how much has gone to the client.
func TestRecordsProgress(t *testing.T) {
	var got []record.Exchange
	s := session{front: &Front{config: Config{Sink: func(x record.Exchange) { got = append(got, x) }}}}
	s.draft.Begin = time.Now().Add(-2 * record.Progress)
	for range 3 {
		s.draft.bytes[toClient] += 100
		s.progress()
	}
	if len(got) != 1 || got[0].Outcome != record.Began || got[0].Bytes != 100 || got[0].Took < 2*record.Progress {
		t.Errorf("got %+v, want one record of progress", got)
	}
}
