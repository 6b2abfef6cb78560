package feed

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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
func socket(t testing.TB) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "boots")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	return filepath.Join(directory, "events.sock")
}

func keyFile(t testing.TB, key string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const goodKey = "0123456789abcdef"

// run runs a task until it is stopped.
func run(t testing.TB, task interface{ Run(context.Context) error }) (stop func()) {
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

func listen(t testing.TB, address, key string) (*Receiver, *heard) {
	t.Helper()
	h := new(heard)
	r, err := Listen(ReceiverConfig{Address: address, KeyFile: key, Event: h.event})
	if err != nil {
		t.Fatal(err)
	}
	return r, h
}

func sender(address string, c SenderConfig) *Sender {
	c.BootsAddress, c.Program, c.Metrics = address, "dhcp-relay", "dhcp_relay"
	return NewSender(c)
}

func (s *Sender) droppedFor(reason string) float64 {
	return testutil.ToFloat64(s.dropped.WithLabelValues(reason))
}

func discover(xid uint32) *boot.Event {
	e := &boot.Event{Kind: boot.DHCPRequest, At: time.Now().UnixNano(), DHCP: 1, MAC: [6]byte{0x52, 0x54, 0, 0x5e, 0, 1}, XID: xid}
	boot.SetText(e, boot.VendorClass, 64, "PXEClient:Arch:00007:UNDI:003016")
	boot.SetText(e, boot.Where, 16, "macvlan0")
	return e
}

// TestFeed: events arrive whole and in order over both kinds of address, and the last ones at the end, too.
func TestFeed(t *testing.T) {
	for name, test := range map[string]struct {
		address func(*testing.T) string
		key     string
	}{
		"Unix socket": {func(t *testing.T) string { return socket(t) }, ""},
		"network":     {func(*testing.T) string { return "127.0.0.1:0" }, goodKey},
	} {
		t.Run(name, func(t *testing.T) {
			key := ""
			if test.key != "" {
				key = keyFile(t, test.key)
			}
			r, h := listen(t, test.address(t), key)
			stopReceiver := run(t, r)
			s := sender(r.Addr().String(), SenderConfig{Destination: Destination{BootsKeyFile: key}, Pod: "pod-1", Lines: 16, Registerer: prometheus.NewRegistry()})
			stop := run(t, s)
			const most = 1000 // some five frames
			for xid := range uint32(most) {
				s.Event(discover(xid))
			}
			testwait.Until(t, "all arrive", func() bool { return len(h.all()) == most })
			sources := r.Sources()
			if len(sources) != 1 || sources[0].Program != "dhcp-relay" || sources[0].Pod != "pod-1" || !sources[0].Heard || sources[0].Lost != 0 {
				t.Errorf("sources: %+v", sources)
			}
			want := discover(most)
			s.Line(want)
			stop()
			stopReceiver()
			for i, xid := range h.all() {
				if xid != uint32(i) {
					t.Fatalf("event %d is %d", i, xid)
				}
			}
			if len(h.all()) != most+1 || h.last != *want {
				t.Errorf("%d events, the last %+v, want %+v", len(h.all()), h.last, want)
			}
			if got := testutil.ToFloat64(s.sent); got != most+1 || r.Refused() != 0 || r.Received() != most+1 {
				t.Errorf("%v sent, %d refused, %d received", got, r.Refused(), r.Received())
			}
			if sources := r.Sources(); len(sources) != 0 {
				t.Errorf("it is waited for after its end: %+v", sources)
			}
		})
	}
}

// TestSenderWithoutReceiver: the newest events are held for as long as it takes, older ones dropped and counted where they
// need the room, and nobody waits. A receiver that comes, and one that replaces it, get them, and the first of them how
// much was lost meanwhile.
func TestSenderWithoutReceiver(t *testing.T) {
	path := socket(t)
	var log bytes.Buffer
	s := sender(path, SenderConfig{Queue: 8, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for xid := range uint32(11) {
		s.Event(discover(xid))
	}
	ctx := t.Context()
	s.sendQueued(ctx)
	if s.droppedFor(droppedFull) != 3 || s.droppedFor(droppedAway) != 2 || log.Len() > 0 {
		t.Errorf("held: %v, %v dropped, log %q", s.droppedFor(droppedFull), s.droppedFor(droppedAway), &log)
	}
	s.away, s.tried = s.away.Add(-time.Hour), time.Time{}
	for xid := range uint32(2) {
		s.Event(discover(50 + xid))
	}
	s.sendQueued(ctx)
	s.sendQueued(ctx)
	if s.droppedFor(droppedAway) != 4 || strings.Count(log.String(), "stack-boots does not take events") != 1 {
		t.Errorf("away: %v dropped, log %q", s.droppedFor(droppedAway), &log)
	}
	held := []uint32{4, 5, 6, 7, 50, 51}
	for round := range uint32(3) { // the first comes, the others replace it
		r, h := listen(t, path, "")
		stop := run(t, r)
		s.Event(discover(100 + round))
		s.tried = time.Time{}
		s.sendQueued(ctx) // finds that the one before has gone
		s.tried = time.Time{}
		s.sendQueued(ctx)
		if diff := cmp.Diff(append(held, 100+round), h.all()); diff != "" {
			t.Errorf("round %d (-want +got): %s", round, diff)
		}
		if lost := r.Lost(); lost != []uint64{7, 0, 0}[round] {
			t.Errorf("round %d: %d are told as lost", round, lost)
		}
		held = nil
		stop()
	}
	if s.droppedFor(droppedAway) != 4 || !strings.Contains(log.String(), "boots are told again") {
		t.Errorf("%v dropped, log %q", s.droppedFor(droppedAway), &log)
	}
	s.client.CloseIdleConnections()
}

// TestNothingIsOfTheFuture: an event whose clock was set back before it was sent does not wait for that time to come.
func TestNothingIsOfTheFuture(t *testing.T) {
	r, h := listen(t, socket(t), "")
	s := sender(r.Addr().String(), SenderConfig{Queue: 64})
	stop := run(t, r)
	e := discover(1)
	e.At = time.Now().Add(time.Hour).UnixNano()
	s.Event(e)
	s.sendQueued(t.Context())
	stop()
	s.client.CloseIdleConnections()
	if len(h.all()) != 1 || h.last.At > time.Now().UnixNano() {
		t.Errorf("heard %v, the last at %v", h.all(), time.Unix(0, h.last.At))
	}
}

// TestSlowReceiver: one that does not read holds nobody up. What finds no room is dropped and counted by both, what
// found some arrives.
func TestSlowReceiver(t *testing.T) {
	r, h := listen(t, socket(t), "")
	s := sender(r.Addr().String(), SenderConfig{Queue: 64})
	stopSender := run(t, s)
	told := uint32(0)
	for s.events.Dropped() == 0 {
		s.Event(discover(told))
		told++
	}
	stop := run(t, r)
	testwait.Until(t, "what was not dropped arrives", func() bool {
		return len(h.all()) > 0 && len(h.all())+int(s.droppedFor(droppedFull)) == int(told)
	})
	stopSender()
	stop()
	if r.Refused() != 0 {
		t.Errorf("%d told, %d refused", told, r.Refused())
	}
}

// TestLossIsTold: what a program drops while it is heard is known to the receiver, and since when.
func TestLossIsTold(t *testing.T) {
	r, h := listen(t, socket(t), "")
	run(t, r)
	s := sender(r.Addr().String(), SenderConfig{Queue: 4})
	defer s.client.CloseIdleConnections()
	s.sendQueued(t.Context())
	for xid := range uint32(9) {
		s.Event(discover(xid))
	}
	s.sendQueued(t.Context())
	if len(h.all()) != 4 || r.Lost() != 5 || r.Sources()[0].Lost != 5 || r.Sources()[0].LostAt.IsZero() || !r.Sources()[0].Heard {
		t.Errorf("heard %v, lost %d: %+v", h.all(), r.Lost(), r.Sources())
	}
}

// TestAnswerThatIsLost: a frame that was taken, and whose answer did not come, is sent again with more and taken once.
func TestAnswerThatIsLost(t *testing.T) {
	r, h := listen(t, socket(t), "")
	run(t, r)
	s := sender(r.Addr().String(), SenderConfig{})
	defer s.client.CloseIdleConnections()
	s.Event(discover(1))
	s.Event(discover(2))
	s.sendQueued(t.Context())
	s.head.Number -= 2 // as if it had not been answered
	for xid := range uint32(3) {
		s.body = discover(xid + 1).AppendBinary(s.body)
	}
	s.held = 3
	s.client.CloseIdleConnections()
	s.sendQueued(t.Context())
	if got := h.all(); len(got) != 3 || got[2] != 3 {
		t.Errorf("heard %v", got)
	}
}

// TestUpdatesLoseNothing: while one receiver after the other takes the place of the one before, as in an update, every
// event is heard by one of them, and nothing is dropped.
func TestUpdatesLoseNothing(t *testing.T) {
	path := socket(t)
	s := sender(path, SenderConfig{})
	stopSender := run(t, s)
	taken, told, ended := map[uint32]bool{}, uint32(0), make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for ticker := time.NewTicker(time.Millisecond); ; {
			select {
			case <-ticker.C:
				s.Event(discover(told))
				told++
			case <-ended:
				ticker.Stop()
				return
			}
		}
	})
	take := func(h *heard) {
		for _, xid := range h.all() {
			taken[xid] = true
		}
	}
	for range 3 {
		r, h := listen(t, path, "")
		stop := run(t, r)
		testwait.Until(t, "events arrive", func() bool { return len(h.all()) > 100 })
		stop()
		take(h)
	}
	close(ended)
	group.Wait()
	r, h := listen(t, path, "")
	stop := run(t, r)
	s.Event(discover(told))
	told++
	testwait.Until(t, "the last one arrives", func() bool { all := h.all(); return len(all) > 0 && all[len(all)-1] == told-1 })
	stopSender()
	stop()
	take(h)
	if len(taken) != int(told) || s.droppedFor(droppedFull)+s.droppedFor(droppedAway)+s.droppedFor(droppedRefused) != 0 {
		t.Errorf("heard %d of %d", len(taken), told)
	}
}

// TestOnlyThoseWithTheKeyAreBelieved, and a key that is replaced counts for the next stream.
func TestOnlyThoseWithTheKeyAreBelieved(t *testing.T) {
	key := keyFile(t, goodKey)
	r, h := listen(t, "127.0.0.1:0", key)
	run(t, r)
	other := keyFile(t, "another key of ours")
	var log bytes.Buffer
	s := sender(r.Addr().String(), SenderConfig{
		Destination: Destination{BootsKeyFile: other}, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	defer s.client.CloseIdleConnections()
	s.away = time.Now().Add(-warnAfter)
	s.Event(discover(1))
	s.sendQueued(t.Context())
	testwait.Until(t, "it is refused", func() bool { return r.Refused() == 1 })
	if len(h.all()) != 0 || !strings.Contains(log.String(), "is the key the same") {
		t.Errorf("%d refused, heard %v, log %q", r.Refused(), h.all(), &log)
	}
	if err := os.WriteFile(other, []byte(goodKey), 0o600); err != nil {
		t.Fatal(err)
	}
	s.tried = time.Time{}
	s.sendQueued(t.Context())
	if got := h.all(); len(got) != 1 {
		t.Errorf("with the key: heard %v, log %q", got, &log)
	}
}

func TestKeysThatCannotBeUsed(t *testing.T) {
	for file, want := range map[string]string{
		keyFile(t, "keep"): "has 4 bytes, fewer than 16", "/nowhere/key": "failed to read the key of boots",
	} {
		if err := CheckKey(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", file, err)
		}
	}
}

// TestWithoutAKeyNobodyIsBelieved: it may come later. Streams that strangers open meanwhile do not fill the log, and
// the sender does not blame its own key.
func TestWithoutAKeyNobodyIsBelieved(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	var log, said lockedBuffer
	h := new(heard)
	r, err := Listen(ReceiverConfig{Address: "127.0.0.1:0", KeyFile: key, Event: h.event, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	run(t, r)
	s := sender(r.Addr().String(), SenderConfig{Destination: Destination{BootsKeyFile: keyFile(t, goodKey)}, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	defer s.client.CloseIdleConnections()
	s.Event(discover(1))
	for range 5 {
		s.away, s.tried = time.Now().Add(-warnAfter), time.Time{}
		s.sendQueued(t.Context())
	}
	if n := strings.Count(log.String(), "failed to read the key of boots"); n != 1 {
		t.Errorf("told %d times", n)
	}
	if said := said.String(); !strings.Contains(said, "internal error") || strings.Contains(said, "is the key the same") || testutil.ToFloat64(s.there) != 0 {
		t.Errorf("log %q", said)
	}
	if err := os.WriteFile(key, []byte(goodKey), 0o600); err != nil {
		t.Fatal(err)
	}
	s.tried = time.Time{}
	s.sendQueued(t.Context())
	if got := h.all(); len(got) != 1 || testutil.ToFloat64(s.there) != 1 {
		t.Errorf("with the key: heard %v", got)
	}
}

// lockedBuffer may be used by several goroutines.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestForgedPosts: what no program of this release would post is refused, and nothing of it taken.
func TestForgedPosts(t *testing.T) {
	events := discover(1).AppendBinary(nil)
	good := append([]byte(`{"Session":"a","Program":"dhcp-relay"}`+"\n"), events...)
	for name, test := range map[string]struct {
		method, path string
		body         []byte
		status       int
		heard        int
	}{
		"whole":                {http.MethodPost, path, good, http.StatusNoContent, 1},
		"another path":         {http.MethodPost, "/v2/events", good, http.StatusBadRequest, 0},
		"no events":            {http.MethodGet, path, nil, http.StatusBadRequest, 0},
		"no head":              {http.MethodPost, path, events, http.StatusBadRequest, 0},
		"no session":           {http.MethodPost, path, append([]byte("{}\n"), events...), http.StatusBadRequest, 0},
		"too long":             {http.MethodPost, path, make([]byte, bodyMost+1), http.StatusBadRequest, 0},
		"an event, cut":        {http.MethodPost, path, good[:len(good)-1], http.StatusBadRequest, 0},
		"more behind an event": {http.MethodPost, path, append(bytes.Clone(good), 9), http.StatusBadRequest, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r, h := listen(t, socket(t), "")
			stop := run(t, r)
			client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
				return net.Dial("unix", r.Addr().String())
			}}}
			request, err := http.NewRequestWithContext(t.Context(), test.method, "http://boots"+test.path, bytes.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			response, err := client.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			stop()
			if refused := r.Refused() == 1; response.StatusCode != test.status || len(h.all()) != test.heard || refused == (test.heard == 1) {
				t.Errorf("status %d, heard %d, refused %v", response.StatusCode, len(h.all()), refused)
			}
		})
	}
}

// TestStrangers: whoever has not got the key is refused, whatever it says and though it has recorded those who have.
func TestStrangers(t *testing.T) {
	key := keyFile(t, goodKey)
	r, h := listen(t, "127.0.0.1:0", key)
	run(t, r)
	recorded := record(t, r.Addr().String())
	s := sender(recorded.Addr().String(), SenderConfig{Destination: Destination{BootsKeyFile: key}})
	s.Event(discover(1))
	s.sendQueued(t.Context())
	s.client.CloseIdleConnections()
	ours, err := identity(keyFile(t, "another key of ours"))
	if err != nil {
		t.Fatal(err)
	}
	ours.VerifyConnection = nil // as if the receiver were believed
	anonymous := ours.Clone()
	anonymous.Certificates = nil
	post := []byte("POST " + path + " HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
	for name, say := range map[string]func(net.Conn){
		"text":        func(c net.Conn) { _, _ = c.Write(post) },
		"noughts":     func(c net.Conn) { _, _ = c.Write(make([]byte, 4096)) },
		"another key": func(c net.Conn) { _, _ = tls.Client(c, ours).Write(post) },
		"no key":      func(c net.Conn) { _, _ = tls.Client(c, anonymous).Write(post) },
		"a recording": func(c net.Conn) { _, _ = c.Write(recorded.all()) },
	} {
		before := r.Refused()
		conn, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		say(conn)
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn) // until the receiver has ended it
		_ = conn.Close()
		testwait.Until(t, name+" is refused", func() bool { return r.Refused() > before }) // net/http closes, and then says why
		if len(h.all()) != 1 {
			t.Errorf("%s: heard %d", name, len(h.all()))
		}
	}
}

// recorder passes one connection on, and keeps what the client said.
type recorder struct {
	net.Listener
	said lockedBuffer
}

func (r *recorder) all() []byte { return []byte(r.said.String()) }

func record(t *testing.T, address string) *recorder {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{Listener: listener}
	var group sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		group.Wait()
	})
	group.Go(func() {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		group.Go(func() { _, _ = io.Copy(client, server); _ = client.Close() })
		_, _ = io.Copy(io.MultiWriter(server, &r.said), client)
		_ = server.Close()
	})
	return r
}

// TestStreamsAreBounded: those of strangers go, those of programs that are believed stay.
func TestStreamsAreBounded(t *testing.T) {
	r, h := listen(t, socket(t), "")
	run(t, r)
	s := sender(r.Addr().String(), SenderConfig{})
	defer s.client.CloseIdleConnections()
	s.sendQueued(t.Context())
	for range mostConnections + 5 {
		conn, err := net.Dial("unix", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	testwait.Until(t, "strangers have gone", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.connections) <= mostConnections
	})
	s.Event(discover(1))
	s.sendQueued(t.Context())
	if got := h.all(); len(got) != 1 || !s.away.IsZero() {
		t.Errorf("heard %v", got)
	}
}

// TestClocksApart: a program's events have the times of the receiver's clock, and follow when the program's is set.
func TestClocksApart(t *testing.T) {
	var s sources
	one := s.begin(head{})
	now := time.Unix(1_800_000_000, 0)
	for i, step := range []struct {
		clock, way time.Duration // the sender's, ahead of ours; how long the frame took
		want       time.Duration
	}{
		{0, time.Millisecond, 0}, {0, 40 * time.Millisecond, 0}, {0, 0, 0},
		{time.Hour, 0, -time.Hour}, {time.Hour, 500 * time.Millisecond, -time.Hour}, {time.Hour, 0, -time.Hour},
		{-time.Minute, 0, time.Minute}, {0, 0, 0},
	} {
		_, ahead := s.post(one, head{Now: now.Add(step.clock).UnixNano()}, 0, now.Add(step.way))
		if got := time.Duration(ahead); (got - step.want).Abs() > clockTolerance {
			t.Errorf("step %d: moved by %s, want %s", i, got, step.want)
		}
		now = now.Add(time.Second)
	}
}

// TestTwins: what two relays tell of one packet counts once; a machine that asks again, and another server, count.
func TestTwins(t *testing.T) {
	var w twins
	a, b := "a", "b"
	begin := time.Now()
	at := func(after time.Duration, change func(*boot.Event)) *boot.Event {
		e := discover(1)
		e.At = begin.Add(after).UnixNano()
		if change != nil {
			change(e)
		}
		return e
	}
	dropped := func(e *boot.Event) { e.Outcome = boot.Dropped }
	offer := func(e *boot.Event) { e.Kind, e.DHCP, e.Server[15] = boot.DHCPReply, 2, 1 }
	for i, step := range []struct {
		e       *boot.Event
		session string
		want    bool
	}{
		{at(0, nil), a, false}, {at(time.Millisecond, nil), b, true}, {at(0, nil), b, true},
		{at(time.Second, nil), b, false}, {at(time.Second, nil), a, true},
		{at(2*time.Second, dropped), a, false}, {at(2*time.Second, nil), b, false}, {at(2*time.Second, dropped), a, true},
		{at(0, offer), a, false}, {at(0, offer), b, true},
		{at(0, func(e *boot.Event) { offer(e); e.Server[15]++ }), b, false},
		{at(0, func(e *boot.Event) { e.Kind = boot.TFTP }), a, false}, {at(0, func(e *boot.Event) { e.Kind = boot.TFTP }), b, false},
	} {
		if got := w.note(step.e, step.session); got != step.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
	if w.dropped.Load() != 5 {
		t.Errorf("%d are counted", w.dropped.Load())
	}
}

func TestListen(t *testing.T) {
	path := socket(t)
	r, _ := listen(t, path, "")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != mode {
		t.Errorf("the socket has mode %v", got)
	}
	r.listener.(*net.UnixListener).SetUnlinkOnClose(false) // a crash leaves the path
	_ = r.Close()
	again, _ := listen(t, path, "")
	_ = again.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ address, want string }{
		{file, "is no socket"}, {filepath.Join(file, "x"), "failed to"}, {"/nowhere/x", "failed to"},
	} {
		if _, err := Listen(ReceiverConfig{Address: test.address}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v", test, err)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "keep" {
		t.Errorf("the file is gone: %q, %v", text, err)
	}
}

func TestDestination(t *testing.T) {
	for _, test := range []struct{ address, key, want string }{
		{"", "", ""}, {"/run/boots/events.sock", "", ""}, {"stack-boots:9072", "/key", ""}, {"[2001:db8::1]:9072", "/key", ""},
		{"", "/key", "X_BOOTS_KEY_FILE=\"/key\": goes with X_BOOTS_ADDRESS"},
		{"stack-boots:9072", "", "set X_BOOTS_KEY_FILE"}, {"true", "/key", "neither host:port nor the path"},
	} {
		err := Destination{BootsAddress: test.address, BootsKeyFile: test.key}.Check("X")
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// TestSendingAllocatesNothing for an event: what a post takes is taken for all its events together.
func TestSendingAllocatesNothing(t *testing.T) {
	r, err := Listen(ReceiverConfig{Address: socket(t), Event: func(*boot.Event) {}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, r)
	s := sender(r.Addr().String(), SenderConfig{})
	defer s.client.CloseIdleConnections()
	s.sendQueued(t.Context())
	e := discover(1)
	took := func(events int) float64 {
		return testing.AllocsPerRun(200, func() {
			for range events {
				s.Event(e)
			}
			s.sendQueued(t.Context())
		})
	}
	if few, many := took(10), took(100); many > few+30 { // the receiver reads more
		t.Errorf("%v allocations for 10 events, %v for 100", few, many)
	}
}

// FuzzPost: a post of a program that has the key and is of another release is taken whole, or not at all.
func FuzzPost(f *testing.F) {
	f.Add(discover(1).AppendBinary([]byte(`{"Session":"a","Number":1,"Lost":2,"Now":3}` + "\n")))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		events := uint64(0)
		r := &Receiver{config: ReceiverConfig{Event: func(*boot.Event) { events++ }}}
		if err := r.take(nil, b, time.Now()); err != nil && events > 0 {
			t.Errorf("took %d events of a post that it refuses", events)
		}
	})
}

// BenchmarkSend is what an event costs the sender and the receiver together, by how many there are at once.
func BenchmarkSend(b *testing.B) {
	key := keyFile(b, goodKey)
	for _, size := range []int{1, 100, 1000} {
		b.Run(strconv.Itoa(size), func(b *testing.B) {
			r, err := Listen(ReceiverConfig{Address: "127.0.0.1:0", KeyFile: key, Event: func(*boot.Event) {}})
			if err != nil {
				b.Fatal(err)
			}
			stop := run(b, r)
			s := sender(r.Addr().String(), SenderConfig{Destination: Destination{BootsKeyFile: key}})
			s.sendQueued(b.Context())
			e := discover(1)
			b.ResetTimer()
			for sent := 0; sent < b.N; sent += size {
				for range size {
					s.Event(e)
				}
				s.sendQueued(b.Context())
			}
			b.StopTimer()
			s.client.CloseIdleConnections()
			stop()
		})
	}
}
