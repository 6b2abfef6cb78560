package syslog

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// tales are what a front tells.
type tales struct {
	mu  sync.Mutex
	all []string
}

func (t *tales) add(e *boot.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf("%d %d %s %d %s %q %q %s %s", e.Kind, e.Outcome, boot.Addr(e.Client), e.Priority,
		netip.AddrPortFrom(boot.Addr(e.Endpoint), e.Port), e.Text(boot.Agent), e.Text(boot.Message), e.Text(boot.Place),
		e.Text(boot.Reason))
	if now := time.Now().UnixNano(); e.At > now || now-e.At > int64(time.Hour) || e.Route != 514 {
		text += fmt.Sprintf(" at %d of port %d", e.At, e.Route)
	}
	t.all = append(t.all, text)
}

func (t *tales) told() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.all...)
}

// TestTells: a line is told of as it was sent, whatever the receiver gets.
func TestTells(t *testing.T) {
	for _, source := range []Source{SourceNone, SourceRewrite, SourceTransparent} {
		t.Run(string(source), func(t *testing.T) {
			l, told := newLab(t), new(tales)
			server := listen(t, l.server, serverIP+":514")
			l.front(t, Config{Pick: to(serverIP + ":514"), Source: source, Event: told.add})
			conn := listen(t, l.client, clientIP+":0")
			for _, line := range []string{
				"<28>Nov 20 10:00:00 node1 tink-worker[7]: no workflow", "<13>1 - m1 hook - - - ready", "bare", "<3>\x1b[31m\xff\n",
			} {
				send(t, conn, line, proxyIP+":514")
				_, _ = receive(t, server)
			}
			want := []string{
				`6 0 192.0.2.1 28 198.51.100.2:514 "tink-worker" "no workflow" syslog `,
				`6 0 192.0.2.1 13 198.51.100.2:514 "hook" "ready" syslog `,
				`6 0 192.0.2.1 13 198.51.100.2:514 "" "bare" syslog `,
				`6 0 192.0.2.1 3 198.51.100.2:514 "" "\x1b[31m\xff\n" syslog `,
			}
			testwait.Until(t, "told of all lines", func() bool { return len(told.told()) == len(want) })
			if diff := cmp.Diff(want, told.told()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestTellsOfLinesThatNobodyTakes, but not of all in a flood.
func TestTellsOfLinesThatNobodyTakes(t *testing.T) {
	l, told := newLab(t), new(tales)
	f := l.front(t, Config{
		Pick:  func(netip.Addr) (netip.AddrPort, error) { return netip.AddrPort{}, endpoint.ErrNone },
		Event: told.add,
	})
	conn := listen(t, l.client, clientIP+":0")
	send(t, conn, "<13>x: y", proxyIP+":514")
	testwait.Until(t, "told", func() bool { return len(told.told()) == 1 })
	if got, want := told.told()[0], `6 5 192.0.2.1 13 invalid AddrPort "x" "y" syslog no_endpoint`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	w := f.workers[0]
	other := &worker{config: w.config, listener: w.listener}
	other.begin()
	for range 10 * boot.AllowanceRate {
		other.tellDropped(datagram.Peer{}, []byte("<13>x: y"), DropNoEndpoint)
	}
	if n := len(told.told()); n != 1+boot.AllowanceRate {
		t.Errorf("told of %d", n)
	}
}

// TestTellingAllocatesNothing for a line, as long as it may be.
func TestTellingAllocatesNothing(t *testing.T) {
	l, events := newLab(t), 0
	f := l.front(t, Config{Pick: to(serverIP + ":514")})
	w := &worker{config: Config{Route: "syslog", Event: func(*boot.Event) { events++ }}, listener: f.workers[0].listener}
	line := []byte("<28>Nov 20 10:00:00 node1 tink-worker[7]: " + strings.Repeat("x", 60_000))
	from := datagram.Peer{AddrPort: netip.MustParseAddrPort("192.0.2.1:514")}
	if n := testing.AllocsPerRun(1000, func() {
		w.begin()
		m := Parse(line)
		w.tellLine(from, from, &m)
	}); n != 0 || events != 1001 {
		t.Errorf("%v allocations, %d events", n, events)
	}
}
