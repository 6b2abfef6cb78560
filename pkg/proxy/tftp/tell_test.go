package tftp

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/endpoint"
)

// tale is an event for comparison.
type tale struct {
	Outcome                                       boot.Outcome
	Client, Endpoint                              string
	Status, Block, Window                         uint16
	Bytes, Expected                               uint64
	Resent                                        bool
	File, Options, Message, Method, Place, Reason string
}

// tales are what a front tells.
type tales struct {
	mu  sync.Mutex
	all []tale
	odd []boot.Event // whose kind, times or port cannot be
}

func (t *tales) add(e *boot.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := func(f boot.Field) string { return string(e.Text(f)) }
	told := tale{
		Outcome: e.Outcome, Client: boot.Addr(e.Client).String(), Status: e.Status, Block: e.Block, Window: e.Window,
		Bytes: e.Bytes, Expected: e.Expected, Resent: e.Resent > 0, File: text(boot.File), Options: text(boot.Agent),
		Message: text(boot.Message), Method: text(boot.Method), Place: text(boot.Place), Reason: text(boot.Reason),
	}
	if at := boot.Addr(e.Endpoint); at.IsValid() {
		told.Endpoint = netip.AddrPortFrom(at, e.Port).String()
	}
	t.all = append(t.all, told)
	if now := time.Now().UnixNano(); e.Kind != boot.TFTP || e.Route != 69 || e.At > now || e.At < now-int64(time.Hour) ||
		e.Took < 0 || e.Took > time.Hour {
		t.odd = append(t.odd, *e)
	}
}

func (t *tales) told() []tale {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]tale(nil), t.all...)
}

// TestTells: what is told of a transfer, and of a request that is refused.
func TestTells(t *testing.T) {
	const end = serverIP + ":69"
	begun := tale{Outcome: boot.Began, Client: clientIP, Endpoint: end, File: "undionly.kpxe", Place: "tftp"}
	done := begun
	done.Outcome, done.Block, done.Window = boot.Done, 512, 1
	files := map[string][]byte{"undionly.kpxe": content(97_000)}
	often := func() func() bool {
		n := 0
		return func() bool { n++; return n%40 == 0 }
	}
	fetched := func(c fetch) func(*testing.T, *lab) {
		return func(_ *testing.T, l *lab) { _, _ = c.run(l.client, proxyIP+":69") }
	}
	sent := func(b []byte) func(*testing.T, *lab) {
		return func(t *testing.T, l *lab) {
			conn := l.udp(t)
			defer conn.Close()
			if _, err := conn.WriteToUDPAddrPort(b, netip.MustParseAddrPort(proxyIP+":69")); err != nil {
				t.Error(err)
			}
			_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			_, _ = conn.Read(make([]byte, 600))
		}
	}
	tests := map[string]struct {
		server *fileServer // nil: silent
		config Config
		ask    func(*testing.T, *lab)
		want   []tale
	}{
		"whole": {
			server: &fileServer{files: files}, ask: fetched(fetch{file: "undionly.kpxe"}),
			want: []tale{begun, with(done, func(e *tale) { e.Bytes = 97_000 })},
		},
		"with options": {
			server: &fileServer{files: files},
			ask:    fetched(fetch{file: "undionly.kpxe", options: []string{"blksize", "1468", "tsize", "0", "windowsize", "4"}}),
			want: []tale{
				with(begun, func(e *tale) { e.Options = "blksize=1468 tsize=0 windowsize=4" }),
				with(done, func(e *tale) {
					e.Options, e.Block, e.Window = "blksize=1468 tsize=97000 windowsize=4", 1468, 4
					e.Bytes, e.Expected = 97_000, 97_000
				}),
			},
		},
		"blocks are lost": {
			server: &fileServer{files: files, lose: often()}, ask: fetched(fetch{file: "undionly.kpxe", tries: 50, lose: often()}),
			want: []tale{begun, with(done, func(e *tale) { e.Bytes, e.Resent = 97_000, true })},
		},
		"not there": {
			server: &fileServer{}, ask: fetched(fetch{file: "undionly.kpxe"}),
			want: []tale{begun, with(done, func(e *tale) {
				e.Status, e.Message, e.Reason = 2, "file not found", "server_error"
			})},
		},
		"nobody listens": {
			config: Config{Pick: to("198.51.100.2:6969")}, ask: sent(rrq("undionly.kpxe")),
			want: []tale{
				with(begun, func(e *tale) { e.Endpoint = "198.51.100.2:6969" }),
				with(done, func(e *tale) {
					e.Endpoint, e.Outcome, e.Reason = "198.51.100.2:6969", boot.NoServer, "refused"
				}),
			},
		},
		"no answer": {
			config: Config{Idle: 200 * time.Millisecond}, ask: sent(rrq("undionly.kpxe")),
			want: []tale{begun, with(done, func(e *tale) { e.Outcome, e.Reason = boot.NoServer, "no_answer" })},
		},
		"stalls": {
			server: &fileServer{files: files}, config: Config{Idle: 300 * time.Millisecond}, ask: sent(rrq("undionly.kpxe")),
			want: []tale{begun, with(done, func(e *tale) {
				e.Outcome, e.Reason, e.Bytes, e.Resent = boot.Torn, "timeout", 512, true
			})},
		},
		"no endpoint": {
			config: Config{Pick: func(netip.Addr) (netip.AddrPort, error) { return netip.AddrPort{}, endpoint.ErrNone }},
			ask:    sent(rrq("undionly.kpxe")),
			want:   []tale{with(begun, func(e *tale) { e.Outcome, e.Endpoint, e.Reason = boot.NoServer, "", "no_endpoint" })},
		},
		"writes": {
			ask: sent(append([]byte{0, opWrite}, rrq("undionly.kpxe")[2:]...)),
			want: []tale{with(begun, func(e *tale) {
				e.Outcome, e.Endpoint, e.Method, e.Reason = boot.Refused, "", "write", "write_refused"
			})},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, told, c := newLab(t), new(tales), test.config
			if test.server != nil {
				test.server.listen(t, l.server, end)
			} else {
				l.silentServer(t, end)
			}
			if c.Pick == nil {
				c.Pick = to(end)
			}
			c.Event = told.add
			l.front(t, c)
			test.ask(t, l)
			testwait.Until(t, "told", func() bool { return len(told.told()) >= len(test.want) })
			if diff := cmp.Diff(test.want, told.told()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(told.odd) > 0 {
				t.Errorf("odd: %+v", told.odd)
			}
		})
	}
}

func with(e tale, change func(*tale)) tale {
	change(&e)
	return e
}
