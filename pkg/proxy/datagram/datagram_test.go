package datagram

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/internal/nstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSockaddr(t *testing.T) {
	const v4, v6 = syscall.AF_INET, syscall.AF_INET6
	for _, tt := range []struct {
		family int
		peer   string
		zone   uint32
	}{
		{v4, "192.0.2.1:69", 0},
		{v6, "192.0.2.1:69", 0}, // mapped, and back
		{v6, "[2001:db8::1]:65535", 0},
		{v6, "[fe80::1]:514", 7},
	} {
		want := Peer{AddrPort: netip.MustParseAddrPort(tt.peer), Zone: tt.zone}
		var s sockaddr
		s.set(tt.family, want)
		if got := s.peer(); got != want {
			t.Errorf("family %d: got %v, want %v", tt.family, got, want)
		}
	}
	if got := (&sockaddr{}).peer(); got != (Peer{}) {
		t.Errorf("got %v of nothing", got)
	}
}

func TestQueueKeepsOrder(t *testing.T) {
	var q queue[int]
	a, b, c := &Session[int]{State: 1}, &Session[int]{State: 2}, &Session[int]{State: 3}
	for _, s := range []*Session[int]{a, b, c} {
		q.push(s, listClient)
	}
	q.remove(b, listClient)
	q.remove(a, listClient)
	q.push(a, listClient)
	var got []int
	for s := q.first; s != nil; s = s.links[listClient].next {
		got = append(got, s.State)
	}
	if diff := cmp.Diff([]int{3, 1}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	q.remove(c, listClient)
	q.remove(a, listClient)
	if q.first != nil || q.last != nil || q.n != 0 {
		t.Error("an empty queue has ends")
	}
}

// loopback opens a listener and a client in a namespace of their own.
func loopback(t testing.TB, at string, n int) ([]*Socket, *nstest.NS) {
	t.Helper()
	ns := nstest.New(t)
	var sockets []*Socket
	ns.Do(t, func() (err error) {
		sockets, err = Listen(netip.MustParseAddrPort(at), n)
		return err
	})
	t.Cleanup(func() { closeAll(sockets) })
	return sockets, ns
}

func dial(t testing.TB, ns *nstest.NS, server string) net.Conn {
	t.Helper()
	var conn net.Conn
	ns.Do(t, func() (err error) {
		conn, err = net.Dial("udp", server)
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// receive waits for n datagrams.
func receive(t testing.TB, b *Batch, s *Socket) {
	t.Helper()
	p, err := NewPoller(1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Add(s, Token{}); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(20*time.Second, func(Event) {}); err != nil {
		t.Fatal(err)
	}
	if err := b.Receive(s, math.MaxInt); err != nil {
		t.Fatal(err)
	}
}

func TestBatchKnowsTheAskedAddress(t *testing.T) {
	for _, tt := range []struct{ listen, ask, asked string }{
		{"[::]:69", "127.0.0.1:69", "127.0.0.1"},
		{"[::]:69", "127.0.0.2:69", "127.0.0.2"},
		{"[::]:69", "[::1]:69", "::1"},
		{"0.0.0.0:69", "127.0.0.3:69", "127.0.0.3"},
		{"127.0.0.4:69", "127.0.0.4:69", "127.0.0.4"},
		{"[::1]:69", "[::1]:69", "::1"},
	} {
		t.Run(tt.listen+" "+tt.ask, func(t *testing.T) {
			sockets, ns := loopback(t, tt.listen, 1)
			conn := dial(t, ns, tt.ask)
			for i := range 3 {
				fmt.Fprintf(conn, "datagram %d", i)
			}
			in, out := NewBatch(4), NewBatch(4)
			receive(t, in, sockets[0])
			if in.Len() != 3 {
				t.Fatalf("got %d datagrams, want 3", in.Len())
			}
			for i := range 3 {
				asked, index := in.Asked(i)
				if string(in.Data(i)) != fmt.Sprintf("datagram %d", i) || asked.String() != tt.asked || index != 1 ||
					in.Peer(i).String() != conn.LocalAddr().String() || in.Truncated(i) {
					t.Errorf("got %q from %s to %s by %d", in.Data(i), in.Peer(i), asked, index)
				}
				out.Take(in, i, sockets[0], in.Peer(i), asked, index)
			}
			out.Push(append(out.Next(), "one more"...), sockets[0], in.Peer(0), netip.MustParseAddr(tt.asked), 1)
			if out.Free() != 0 {
				t.Errorf("room for %d in a full batch", out.Free())
			}
			if failed, err := out.Send(sockets[0]); failed != 0 {
				t.Fatalf("%d datagrams failed: %v", failed, err)
			}
			// A connected socket takes answers from the asked address and port only.
			buf := make([]byte, 100)
			for _, want := range []string{"datagram 0", "datagram 1", "datagram 2", "one more"} {
				_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
				if n, err := conn.Read(buf); err != nil || string(buf[:n]) != want {
					t.Errorf("got %q, %v, want %q", buf[:n], err, want)
				}
			}
		})
	}
}

func TestSendGoesOnAfterAFailure(t *testing.T) {
	sockets, ns := loopback(t, "127.0.0.1:69", 1)
	conn := dial(t, ns, "127.0.0.1:69")
	client := Peer{AddrPort: netip.MustParseAddrPort(conn.LocalAddr().String())}
	out := NewBatch(3)
	for _, to := range []Peer{client, {AddrPort: netip.MustParseAddrPort("203.0.113.1:9")}, client} {
		out.Push(append(out.Next(), "hello"...), sockets[0], to, netip.Addr{}, 0)
	}
	if failed, err := out.Send(sockets[0]); failed != 1 || !errors.Is(err, syscall.ENETUNREACH) {
		t.Errorf("got %d failed, %v, want the one without a route", failed, err)
	}
	buf := make([]byte, 100)
	for range 2 {
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Read(buf); err != nil {
			t.Error(err)
		}
	}
}

func TestTrainsArriveAsDatagrams(t *testing.T) {
	sockets, ns := loopback(t, "[::]:69", 1)
	conn := dial(t, ns, "127.0.0.1:69")
	other := dial(t, ns, "[::1]:69")
	peer := func(c net.Conn) Peer { return Peer{AddrPort: netip.MustParseAddrPort(c.LocalAddr().String())} }
	var want []string
	out := NewBatch(64)
	for i, size := range []int{100, 100, 100, 40, 50, 40, 1300, 1300, 0, 7, 7, 8} {
		want = append(want, strings.Repeat(string(rune('a'+i)), size))
	}
	sockets[0].EnableGSO()
	for i, data := range want {
		if i == 2 {
			out.Push(append(out.Next(), "between"...), sockets[0], peer(other), netip.Addr{}, 0)
		}
		out.Push(append(out.Next(), data...), sockets[0], peer(conn), netip.Addr{}, 0)
	}
	out.arrange()
	if n := out.couple(sockets[0], 0); n >= out.Len() {
		t.Errorf("%d datagrams in %d messages: no segments", out.Len(), n)
	}
	if failed, err := out.Send(sockets[0]); failed != 0 {
		t.Fatalf("%d datagrams failed: %v", failed, err)
	}
	if !sockets[0].gso {
		t.Error("loopback carries no segments")
	}
	buf := make([]byte, 2000)
	for i, w := range want {
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := conn.Read(buf); err != nil || string(buf[:n]) != w {
			t.Errorf("datagram %d: got %d bytes %.8q, %v, want %d", i, n, buf[:n], err, len(w))
		}
	}
}

// Streams may overtake each other, a datagram may not overtake its own stream, and none is lost or doubled.
func TestArrangeKeepsStreams(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s := &Socket{family: syscall.AF_INET, gso: true}
	b := NewBatch(64)
	to := []Peer{
		{AddrPort: netip.MustParseAddrPort("192.0.2.1:514")}, {AddrPort: netip.MustParseAddrPort("192.0.2.2:514")},
	}
	messages := 0
	for range 200 {
		b.Reset()
		for range 1 + r.IntN(64) {
			b.Push(b.Next()[:r.IntN(140)], s, to[r.IntN(20)/19], netip.Addr{}, 0)
			b.Tag(uint32(r.IntN(50)))
		}
		b.arrange()
		last := map[uint32]int{}
		seen := map[int]bool{}
		for _, i := range b.order[:b.n] {
			if before, ok := last[b.tags[i]]; ok && before > i {
				t.Fatalf("datagram %d of stream %d left after %d", i, b.tags[i], before)
			}
			last[b.tags[i]] = i
			seen[i] = true
		}
		if len(seen) != b.Len() {
			t.Fatalf("%d of %d datagrams left", len(seen), b.Len())
		}
		if b.Len() == 64 {
			messages = b.couple(s, 0)
		}
	}
	if messages == 0 || messages > 36 {
		t.Errorf("64 datagrams in %d messages", messages)
	}
}

// An interface that takes no segments gets datagrams one by one, and none is lost.
func TestTrainsStop(t *testing.T) {
	sockets, ns := loopback(t, "127.0.0.1:69", 1)
	lo := ns.Link(t, "lo")
	if err := ns.Links().LinkSetMTU(lo, 600); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, ns, "127.0.0.1:69")
	out := NewBatch(8)
	sockets[0].EnableGSO()
	for range 5 {
		out.Push(append(out.Next(), bytes.Repeat([]byte{1}, 1000)...), sockets[0],
			Peer{AddrPort: netip.MustParseAddrPort(conn.LocalAddr().String())}, netip.Addr{}, 0)
	}
	if failed, err := out.Send(sockets[0]); failed != 0 {
		t.Fatalf("%d datagrams failed: %v", failed, err)
	}
	if sockets[0].gso {
		t.Error("segments beyond the MTU went as one packet")
	}
	buf := make([]byte, 2000)
	for range 5 {
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := conn.Read(buf); err != nil || n != 1000 {
			t.Errorf("got %d bytes, %v", n, err)
		}
	}
}

func TestListenShares(t *testing.T) {
	sockets, ns := loopback(t, "[::]:0", 3)
	for _, s := range sockets {
		if s.Local() != sockets[0].Local() {
			t.Errorf("got %s and %s", s.Local(), sockets[0].Local())
		}
	}
	got := map[int]int{}
	in := NewBatch(64)
	for range 60 {
		_, _ = dial(t, ns, fmt.Sprintf("127.0.0.1:%d", sockets[0].Local().Port())).Write([]byte("x"))
	}
	for i, s := range sockets {
		receive(t, in, s)
		got[i] = in.Len()
	}
	if got[0]+got[1]+got[2] != 60 || got[0] == 0 || got[1] == 0 || got[2] == 0 {
		t.Errorf("60 clients were spread as %v", got)
	}
}

func TestListenNamesWhatIsTaken(t *testing.T) {
	sockets, ns := loopback(t, "127.0.0.1:69", 2)
	_ = sockets
	for at, want := range map[string]string{
		"127.0.0.1:69": "failed to listen on udp 127.0.0.1:69: taken by another socket (ss -lunp names it): bind: address already in use",
		"[::]:69":      "failed to listen on udp port 69: taken by another socket (ss -lunp names it): bind: address already in use",
		"192.0.2.1:69": "failed to listen on udp 192.0.2.1:69: the address is on none of our interfaces: bind: cannot assign requested address",
	} {
		err := ns.Try(func() error {
			_, err := Listen(netip.MustParseAddrPort(at), 2)
			return err
		})
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// echoes passes everything in both directions.
type echoes struct{ closed map[End]int }

func (e *echoes) Client(w *Worker[int], s *Session[int], d Datagram) {
	if s == nil {
		s, _, _ = w.Open(d)
	}
	if s != nil {
		_ = s.Send(d.Data, s.Endpoint)
	}
}
func (e *echoes) Server(_ *Worker[int], s *Session[int], from Peer, _ []byte) bool {
	return from == s.Endpoint
}
func (e *echoes) Refused(*Worker[int], *Session[int])             {}
func (e *echoes) Closed(_ *Worker[int], _ *Session[int], why End) { e.closed[why]++ }
func (e *echoes) Lost(uint32)                                     {}
func (e *echoes) Unsent(int, error)                               {}

// turn is one turn of the loop of Run.
func (w *Worker[T]) turn(t testing.TB) {
	happened := false
	for range 10 { // a Wait may end early
		if err := w.poller.Wait(time.Second, func(e Event) {
			happened = true
			w.event(e)
		}); err != nil {
			t.Fatal(err)
		}
		if happened {
			break
		}
	}
	w.flush()
	w.expire()
}

// relayed is a worker, a client and a server of one session, all in one namespace.
func relayed(t testing.TB) (w *Worker[int], client, server *Socket) {
	t.Helper()
	ns := nstest.New(t)
	ns.Do(t, func() error {
		listeners, err := Listen(netip.MustParseAddrPort("127.0.0.1:69"), 1)
		if err != nil {
			return err
		}
		if server, err = Open(netip.MustParseAddr("127.0.0.1")); err != nil {
			return err
		}
		if client, err = bound(netip.MustParseAddr("127.0.0.1"), 0, false, false); err != nil { // not one of our own
			return err
		}
		endpoint := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), server.Local().Port())
		workers, err := NewWorkers[int](listeners, &echoes{closed: map[End]int{}}, Options{
			Limits: NewLimits(10, 10),
			Pick:   func(netip.Addr) (netip.AddrPort, error) { return endpoint, nil },
			Timing: NewTiming(time.Hour, time.Hour, 0),
		})
		if err != nil {
			return err
		}
		w = workers[0]
		w.now = time.Now()
		// The first exchange opens the session here, inside of the namespace.
		roundTrip(t, w, client, server, NewBatch(1), []byte("first"))
		return nil
	})
	t.Cleanup(func() {
		w.closeAll()
		w.Close()
		client.Close()
		server.Close()
	})
	return w, client, server
}

// roundTrip is a datagram from the client to the server and back again.
func roundTrip(t testing.TB, w *Worker[int], client, server *Socket, b *Batch, data []byte) {
	front := Peer{AddrPort: w.listener.Local()}
	if err := client.SendTo(data, front); err != nil {
		t.Fatal(err)
	}
	w.turn(t)
	if err := b.Receive(server, 1); err != nil || b.Len() != 1 || !bytes.Equal(b.Data(0), data) {
		t.Fatalf("the server got %d datagrams, %v", b.Len(), err)
	}
	if err := server.SendTo(data, b.Peer(0)); err != nil {
		t.Fatal(err)
	}
	w.turn(t)
	if err := b.Receive(client, 1); err != nil || b.Len() != 1 || !bytes.Equal(b.Data(0), data) || b.Peer(0) != front {
		t.Fatalf("the client got %d datagrams from %s, %v", b.Len(), b.Peer(0), err)
	}
}

func TestRelayDoesNotAllocate(t *testing.T) {
	w, client, server := relayed(t)
	b, data := NewBatch(1), bytes.Repeat([]byte{1}, 516)
	if n := testing.AllocsPerRun(200, func() { roundTrip(t, w, client, server, b, data) }); n != 0 {
		t.Errorf("got %v allocations a round trip, want none", n)
	}
}

func BenchmarkRelay(b *testing.B) {
	w, client, server := relayed(b)
	batch, data := NewBatch(1), bytes.Repeat([]byte{1}, 516)
	b.ReportAllocs()
	for b.Loop() {
		roundTrip(b, w, client, server, batch, data)
	}
}

func TestWakeEndsRun(t *testing.T) {
	sockets, _ := loopback(t, "127.0.0.1:69", 2)
	workers, err := NewWorkers[int](sockets, &echoes{closed: map[End]int{}}, Options{
		Limits: NewLimits(10, 10), Timing: NewTiming(time.Hour, time.Hour, 0),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- RunAll(ctx, workers) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A batch's 4 MiB, of which hardly any are ever used, must not set the pace of garbage collection.
func TestBatchIsOutsideOfTheHeap(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	b := NewBatch(64)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 64*bufferSize/8 {
		t.Errorf("a batch took %d bytes of the heap", grown)
	}
	b.Close()
	b.Close()
}
