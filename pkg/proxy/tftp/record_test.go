package tftp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/record"
	"github.com/tinkerbell/stack/pkg/record/recordtest"
)

// TestRecords has what is recorded of a transfer, and of a request that is refused.
func TestRecords(t *testing.T) {
	const end = serverIP + ":69"
	begun := record.Exchange{
		Kind: record.TFTP, Outcome: record.Began, Client: netip.MustParseAddr(clientIP),
		Endpoint: netip.MustParseAddrPort(end), Name: "undionly.kpxe", Route: "tftp",
	}
	done := begun
	done.Outcome, done.BlockSize, done.Window = record.Done, 512, 1
	other := netip.MustParseAddrPort("198.51.100.2:6969")
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
		want   []record.Exchange
	}{
		"whole": {
			server: &fileServer{files: files}, ask: fetched(fetch{file: "undionly.kpxe"}),
			want: []record.Exchange{begun, with(done, func(e *record.Exchange) { e.Bytes = 97_000 })},
		},
		"with options": {
			server: &fileServer{files: files},
			ask:    fetched(fetch{file: "undionly.kpxe", options: []string{"blksize", "1468", "tsize", "0", "windowsize", "4"}}),
			want: []record.Exchange{
				with(begun, func(e *record.Exchange) { e.Software = "blksize=1468 tsize=0 windowsize=4" }),
				with(done, func(e *record.Exchange) {
					e.Software, e.BlockSize, e.Window = "blksize=1468 tsize=97000 windowsize=4", 1468, 4
					e.Bytes, e.Expected = 97_000, 97_000
				}),
			},
		},
		"blocks are lost": {
			server: &fileServer{files: files, lose: often()}, ask: fetched(fetch{file: "undionly.kpxe", tries: 50, lose: often()}),
			want: []record.Exchange{begun, with(done, func(e *record.Exchange) { e.Bytes, e.Resent = 97_000, 1 })},
		},
		"not there": {
			server: &fileServer{}, ask: fetched(fetch{file: "undionly.kpxe"}),
			want: []record.Exchange{begun, with(done, func(e *record.Exchange) {
				e.Code, e.Message, e.Reason = 2, "file not found", "server_error"
			})},
		},
		"nobody listens": {
			config: Config{Pick: to("198.51.100.2:6969")}, ask: sent(rrq("undionly.kpxe")),
			want: []record.Exchange{
				with(begun, func(e *record.Exchange) { e.Endpoint = other }),
				with(done, func(e *record.Exchange) {
					e.Endpoint, e.Outcome, e.Reason = other, record.NoServer, "refused"
				}),
			},
		},
		"no answer": {
			config: Config{Idle: 200 * time.Millisecond}, ask: sent(rrq("undionly.kpxe")),
			want: []record.Exchange{begun, with(done, func(e *record.Exchange) { e.Outcome, e.Reason = record.NoServer, "no_answer" })},
		},
		"stalls": {
			server: &fileServer{files: files}, config: Config{Idle: 300 * time.Millisecond}, ask: sent(rrq("undionly.kpxe")),
			want: []record.Exchange{begun, with(done, func(e *record.Exchange) {
				e.Outcome, e.Reason, e.Bytes, e.Resent = record.Torn, "timeout", 512, 1
			})},
		},
		"no endpoint": {
			config: Config{Pick: func(netip.Addr) (netip.AddrPort, error) { return netip.AddrPort{}, endpoint.ErrNone }},
			ask:    sent(rrq("undionly.kpxe")),
			want: []record.Exchange{with(begun, func(e *record.Exchange) {
				e.Outcome, e.Endpoint, e.Reason = record.NoServer, netip.AddrPort{}, "no_endpoint"
			})},
		},
		"writes": {
			ask: sent(append([]byte{0, opWrite}, rrq("undionly.kpxe")[2:]...)),
			want: []record.Exchange{with(begun, func(e *record.Exchange) {
				e.Outcome, e.Endpoint, e.Method, e.Reason = record.Refused, netip.AddrPort{}, "write", "write_refused"
			})},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, log, c := newLab(t), &recordtest.Log{Port: 69}, test.config
			if test.server != nil {
				test.server.listen(t, l.server, end)
			} else {
				l.silentServer(t, end)
			}
			if c.Pick == nil {
				c.Pick = to(end)
			}
			c.Sink = log.Add
			l.front(t, c)
			test.ask(t, l)
			got := log.Await(t, len(test.want))
			for i := range got {
				got[i].Resent = min(got[i].Resent, 1) // by how slow the machine is
			}
			if diff := recordtest.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func with(e record.Exchange, change func(*record.Exchange)) record.Exchange {
	change(&e)
	return e
}
