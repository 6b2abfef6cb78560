package syslog

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/record"
	"github.com/tinkerbell/stack/pkg/record/recordtest"
)

// recorded is a line as it is recorded.
func recorded(priority uint16, tag, text string) record.Exchange {
	return record.Exchange{
		Kind: record.Syslog, Route: "syslog", Client: netip.MustParseAddr(clientIP),
		Endpoint: netip.MustParseAddrPort(serverIP + ":514"), Code: priority, Software: tag, Message: text,
		Bytes: uint64(len(text)),
	}
}

// TestRecordsLines as they were sent, whatever the receiver gets.
func TestRecordsLines(t *testing.T) {
	l, log := newLab(t), &recordtest.Log{Port: 514}
	server := listen(t, l.server, serverIP+":514")
	l.front(t, Config{Pick: to(serverIP + ":514"), Sink: log.Add})
	conn := listen(t, l.client, clientIP+":0")
	for _, line := range []string{
		"<28>Nov 20 10:00:00 node1 tink-worker[7]: no workflow", "<13>1 - m1 hook - - - ready", "bare", "<3>\x1b[31m\xff\n",
	} {
		send(t, conn, line, proxyIP+":514")
		_, _ = receive(t, server)
	}
	want := []record.Exchange{
		recorded(28, "tink-worker", "no workflow"), recorded(13, "hook", "ready"), recorded(13, "", "bare"),
		recorded(3, "", "\x1b[31m\xff\n"),
	}
	if diff := recordtest.Diff(want, log.Await(t, len(want))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRecordsLinesThatNobodyTakes with the reason.
func TestRecordsLinesThatNobodyTakes(t *testing.T) {
	l, log := newLab(t), &recordtest.Log{Port: 514}
	l.front(t, Config{
		Pick: func(netip.Addr) (netip.AddrPort, error) { return netip.AddrPort{}, endpoint.ErrNone },
		Sink: log.Add,
	})
	send(t, listen(t, l.client, clientIP+":0"), "<13>x: y", proxyIP+":514")
	want := recorded(13, "x", "y")
	want.Outcome, want.Reason, want.Endpoint, want.Bytes = record.NoServer, "no_endpoint", netip.AddrPort{}, 0
	if diff := recordtest.Diff([]record.Exchange{want}, log.Await(t, 1)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestRecordAllocatesNothing for a line, as long as it may be.
func TestRecordAllocatesNothing(t *testing.T) {
	l, lines := newLab(t), 0
	f := l.front(t, Config{Pick: to(serverIP + ":514")})
	w := &worker{config: Config{Route: "syslog", Sink: func(record.Exchange) { lines++ }}, listener: f.worker.listener}
	line := []byte("<28>Nov 20 10:00:00 node1 tink-worker[7]: " + strings.Repeat("x", 60_000))
	from := datagram.Peer{AddrPort: netip.MustParseAddrPort("192.0.2.1:514")}
	if n := testing.AllocsPerRun(1000, func() {
		m := Parse(line)
		w.record(from, from.AddrPort, &m, NotDropped)
	}); n != 0 || lines != 1001 {
		t.Errorf("%v allocations, %d lines", n, lines)
	}
}
