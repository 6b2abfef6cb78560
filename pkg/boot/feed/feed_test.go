package feed

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// heard are the events that a receiver has told.
type heard struct {
	mu   sync.Mutex
	xids []uint32
	last boot.Event
}

func (h *heard) event(e *boot.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.xids = append(h.xids, e.XID)
	h.last = *e
}

func (h *heard) all() []uint32 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]uint32(nil), h.xids...)
}

// socket is a path that is short enough for a Unix socket.
func socket(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "boots")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	return filepath.Join(directory, "events.sock")
}

// run runs a task until it is stopped.
func run(t *testing.T, task interface{ Run(context.Context) error }) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- task.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func listen(t *testing.T, path string) (*Receiver, *heard) {
	t.Helper()
	h := new(heard)
	r, err := Listen(path, h.event)
	if err != nil {
		t.Fatal(err)
	}
	return r, h
}

func discover(xid uint32) *boot.Event {
	e := &boot.Event{Kind: boot.DHCPRequest, At: int64(xid), DHCP: 1, MAC: [6]byte{0x52, 0x54, 0, 0x5e, 0, 1}, XID: xid}
	boot.SetText(e, boot.VendorClass, 64, "PXEClient:Arch:00007:UNDI:003016")
	boot.SetText(e, boot.Place, 16, "macvlan0")
	return e
}

// TestFeed: events arrive whole, in order and batched, and the last ones at the end, too.
func TestFeed(t *testing.T) {
	path := socket(t)
	r, h := listen(t, path)
	stopReceiver := run(t, r)
	s := NewSender(SenderConfig{Socket: path, Queue: 1024, Registerer: prometheus.NewRegistry()})
	stop := run(t, s)
	const most = 1000 // some ten datagrams
	for xid := range uint32(most) {
		s.Event(discover(xid))
	}
	testwait.Until(t, "all arrive", func() bool { return len(h.all()) == most })
	s.Event(discover(most))
	stop()
	testwait.Until(t, "the last arrives", func() bool { return len(h.all()) == most+1 })
	stopReceiver()
	for i, xid := range h.all() {
		if xid != uint32(i) {
			t.Fatalf("event %d is %d", i, xid)
		}
	}
	if want := discover(most); h.last != *want {
		t.Errorf("got %+v, want %+v", h.last, want)
	}
	if got := testutil.ToFloat64(s.sent); got != most+1 || r.Refused() != 0 {
		t.Errorf("%v sent, %d refused", got, r.Refused())
	}
}

// TestSenderWithoutReceiver: events are held for a while, dropped and counted then, and nobody waits. A receiver that
// comes, and one that replaces it, get what is told from then on.
func TestSenderWithoutReceiver(t *testing.T) {
	path, now := socket(t), time.Now()
	var log bytes.Buffer
	s := NewSender(SenderConfig{Socket: path, Queue: 8, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	s.away = now
	dropped := func(reason string) float64 { return testutil.ToFloat64(s.dropped.WithLabelValues(reason)) }
	for xid := range uint32(11) {
		s.Event(discover(xid))
	}
	s.turn(now.Add(holdFor - 1))
	if dropped(droppedFull) != 3 || dropped(droppedAway) != 0 || log.Len() > 0 {
		t.Errorf("held: %v, %v dropped, log %q", dropped(droppedFull), dropped(droppedAway), &log)
	}
	s.turn(now.Add(holdFor))
	s.turn(now.Add(2 * holdFor))
	if dropped(droppedAway) != 8 || strings.Count(log.String(), "nobody takes events of boots") != 1 {
		t.Errorf("away: %v dropped, log %q", dropped(droppedAway), &log)
	}
	for round := range uint32(3) { // the first comes, the others replace it
		r, h := listen(t, path)
		stop := run(t, r)
		s.Event(discover(100 + round))
		now = now.Add(3 * holdFor)
		s.turn(now) // finds that the one before has gone
		s.turn(now.Add(Every))
		testwait.Until(t, "a receiver hears", func() bool { return len(h.all()) == 1 && h.all()[0] == 100+round })
		stop()
	}
	if dropped(droppedAway) != 8 || !strings.Contains(log.String(), "boots are sent again") {
		t.Errorf("%v dropped, log %q", dropped(droppedAway), &log)
	}
	_ = s.conn.Close()
}

// TestReceiverIsGone: when Run has returned, no sender takes its socket for a receiver's any more.
func TestReceiverIsGone(t *testing.T) {
	path := socket(t)
	for range 200 {
		r, _ := listen(t, path)
		stop := run(t, r)
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		stop()
		if _, err := conn.Write([]byte{0}); err == nil {
			t.Fatal("the kernel took a datagram for a receiver that has ended")
		}
		_ = conn.Close()
	}
}

// TestSlowReceiver: one that does not read holds nobody up. What finds no room is dropped and counted, what found some
// arrives.
func TestSlowReceiver(t *testing.T) {
	path := socket(t)
	r, h := listen(t, path)
	s := NewSender(SenderConfig{Socket: path, Queue: 64})
	told, now := 0, time.Now()
	for s.queue.Dropped() == 0 {
		for range 64 {
			s.Event(discover(uint32(told)))
			told++
		}
		s.turn(now)
		if told > 1<<20 {
			t.Fatal("a receiver that does not read takes everything")
		}
	}
	s.turn(now)
	stop := run(t, r)
	testwait.Until(t, "the rest is sent", func() bool { s.turn(now); return s.events == 0 })
	arrived := func() int { return len(h.all()) }
	lost := int(testutil.ToFloat64(s.dropped.WithLabelValues(droppedFull)))
	testwait.Until(t, "what was not dropped arrives", func() bool { return arrived()+lost == told })
	stop()
	if lost == 0 || arrived() == 0 || r.Refused() != 0 {
		t.Errorf("%d told, %d lost, %d arrived, %d refused", told, lost, arrived(), r.Refused())
	}
	_ = s.conn.Close()
}

// TestForgedDatagrams: what dhcp-relay does not send is refused and counted, and the next good one is taken.
func TestForgedDatagrams(t *testing.T) {
	encode := func(events ...*boot.Event) (b []byte) {
		for _, e := range events {
			b, _ = e.AppendBinary(b)
		}
		return b
	}
	good := encode(discover(1))
	another := bytes.Clone(good)
	another[0]++ // the version
	tests := map[string]struct {
		datagram []byte
		heard    int
	}{
		"empty":                    {nil, 0},
		"text":                     {[]byte("GET / HTTP/1.1\r\n\r\n"), 0},
		"another version":          {another, 0},
		"cut":                      {good[:len(good)-1], 0},
		"more behind it":           {append(bytes.Clone(good), 0xff), 1},
		"of the proxy":             {encode(&boot.Event{Kind: boot.TFTP, Outcome: boot.Done}), 0},
		"an outcome of the proxy":  {encode(&boot.Event{Kind: boot.DHCPRequest, Outcome: boot.Done}), 0},
		"too long":                 {bytes.Repeat(good, datagramMost/len(good)+1), 0},
		"noughts":                  {make([]byte, 4096), 0},
		"all bits":                 {bytes.Repeat([]byte{0xff}, 4096), 0},
		"one of the proxy, hidden": {encode(discover(1), &boot.Event{Kind: boot.Syslog}), 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			path := socket(t)
			r, h := listen(t, path)
			run(t, r)
			conn, err := net.Dial("unixgram", path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for _, datagram := range [][]byte{test.datagram, encode(discover(7))} {
				if _, err := conn.Write(datagram); err != nil {
					t.Fatal(err)
				}
			}
			testwait.Until(t, "both are read", func() bool { all := h.all(); return len(all) > 0 && all[len(all)-1] == 7 })
			if got := len(h.all()) - 1; got != test.heard || r.Refused() != 1 {
				t.Errorf("heard %d, refused %d", got, r.Refused())
			}
		})
	}
}

func TestListen(t *testing.T) {
	path := socket(t)
	r, _ := listen(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != mode {
		t.Errorf("the socket has mode %v", got)
	}
	_ = r.Close()
	again, _ := listen(t, path) // a crash leaves the path
	_ = again.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	for at, want := range map[string]string{file: "is no socket", filepath.Join(file, "x"): "failed to", "/nowhere/x": "failed to"} {
		if _, err := Listen(at, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", at, err)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "keep" {
		t.Errorf("the file is gone: %q, %v", text, err)
	}
}

// TestSendingAllocatesNothing for an event.
func TestSendingAllocatesNothing(t *testing.T) {
	path := socket(t)
	r, _ := listen(t, path)
	defer r.Close()
	s := NewSender(SenderConfig{Socket: path})
	e, now := discover(1), time.Now()
	buffer := make([]byte, datagramMost+1)
	got := testing.AllocsPerRun(200, func() {
		for range 10 {
			s.Event(e)
		}
		s.turn(now)
		if _, err := r.conn.Read(buffer); err != nil {
			t.Error(err)
		}
	})
	if got > 2 { // of the system call, for all of them together
		t.Errorf("%v allocations", got)
	}
	_ = s.conn.Close()
}

// FuzzDatagram: whatever comes, only dhcp-relay's events come out.
func FuzzDatagram(f *testing.F) {
	one, _ := discover(1).AppendBinary(nil)
	two, _ := discover(2).AppendBinary(bytes.Clone(one))
	f.Add(one)
	f.Add(two)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &Receiver{event: func(e *boot.Event) {
			if !fromRelay(e) {
				t.Errorf("took %+v", e)
			}
		}}
		var e boot.Event
		r.datagram(b, &e)
	})
}
