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
	"github.com/tinkerbell/stack/pkg/mmsg"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
func loopback(t testing.TB, at string) (*Socket, *nstest.NS) {
	t.Helper()
	ns := nstest.New(t)
	var socket *Socket
	ns.Do(t, func() (err error) {
		socket, err = Listen(netip.MustParseAddrPort(at))
		return err
	})
	t.Cleanup(socket.Close)
	return socket, ns
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
func receive(t testing.TB, b *RecvBatch, s *Socket) {
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
			socket, ns := loopback(t, tt.listen)
			conn := dial(t, ns, tt.ask)
			for i := range 3 {
				fmt.Fprintf(conn, "datagram %d", i)
			}
			in, out := NewRecvBatch(), NewSendBatch(socket, false)
			defer in.Close()
			defer out.Close()
			receive(t, in, socket)
			if in.Len() != 3 {
				t.Fatalf("got %d datagrams, want 3", in.Len())
			}
			for i := range 3 {
				asked, index, _ := in.Local(i)
				if string(in.Data(i)) != fmt.Sprintf("datagram %d", i) || asked.String() != tt.asked || index != 1 ||
					in.Peer(i).String() != conn.LocalAddr().String() || in.Truncated(i) {
					t.Errorf("got %q from %s to %s by %d", in.Data(i), in.Peer(i), asked, index)
				}
				out.Take(in, i, in.Peer(i), asked, uint32(index))
			}
			out.Push(append(out.Next(), "one more"...), in.Peer(0), netip.MustParseAddr(tt.asked), 1)
			if failed, err := out.Send(); failed != 0 {
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
	socket, ns := loopback(t, "127.0.0.1:69")
	conn := dial(t, ns, "127.0.0.1:69")
	client := Peer{AddrPort: netip.MustParseAddrPort(conn.LocalAddr().String())}
	out := NewSendBatch(socket, false)
	defer out.Close()
	for _, to := range []Peer{client, {AddrPort: netip.MustParseAddrPort("203.0.113.1:9")}, client} {
		out.Push(append(out.Next(), "hello"...), to, netip.Addr{}, 0)
	}
	if failed, err := out.Send(); failed != 1 || !errors.Is(err, syscall.ENETUNREACH) {
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

// Streams may overtake each other, a datagram may not overtake its own stream, and none is lost or doubled. The order
// makes few packets of many datagrams.
func TestArrangeKeepsStreams(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	b := NewSendBatch(&Socket{family: syscall.AF_INET}, true)
	defer b.Close()
	to := []Peer{
		{AddrPort: netip.MustParseAddrPort("192.0.2.1:514")}, {AddrPort: netip.MustParseAddrPort("192.0.2.2:514")},
	}
	messages := 0
	for range 200 {
		b.n = 0
		for range 1 + r.IntN(mmsg.Batch) {
			b.Push(b.Next()[:r.IntN(140)], to[r.IntN(20)/19], netip.Addr{}, 0)
			b.Tag(uint32(r.IntN(50)))
		}
		b.arrange()
		last := map[uint32]int{}
		seen := map[int]bool{}
		count, first, before := 0, -1, 0
		for _, i := range b.order {
			q := &b.queued[i]
			if earlier, ok := last[q.stream]; ok && earlier > i {
				t.Fatalf("datagram %d of stream %d left after %d", i, q.stream, earlier)
			}
			last[q.stream] = i
			seen[i] = true
			// A message's segments have the size of its first, but for the last, which may be shorter.
			if size := len(q.data); first < 0 || q.path != b.queued[first].path || before < len(b.queued[first].data) ||
				size > before {
				count, first = count+1, i
			}
			before = len(q.data)
		}
		if len(seen) != b.Len() {
			t.Fatalf("%d of %d datagrams left", len(seen), b.Len())
		}
		if b.Full() {
			messages = count
		}
	}
	if messages == 0 || messages > 36 {
		t.Errorf("%d datagrams in %d messages", mmsg.Batch, messages)
	}
}

// Datagrams to two addresses arrive as they were sent, with segments and, on an interface that takes none, without.
func TestSegmentsArriveAsDatagrams(t *testing.T) {
	for _, mtu := range []int{65536, 1280} {
		t.Run(fmt.Sprintf("MTU %d", mtu), func(t *testing.T) {
			socket, ns := loopback(t, "[::]:69")
			if err := ns.Links().LinkSetMTU(ns.Link(t, "lo"), mtu); err != nil {
				t.Fatal(err)
			}
			out := NewSendBatch(socket, true)
			defer out.Close()
			conns := []net.Conn{dial(t, ns, "127.0.0.1:69"), dial(t, ns, "[::1]:69")}
			want := [][]string{nil, nil}
			for i, size := range []int{100, 100, 100, 40, 50, 40, 1300, 1200, 1200, 1200, 0, 7, 7, 8} {
				c, data := i/5%2, strings.Repeat(string(rune('a'+i)), size)
				want[c] = append(want[c], data)
				to := Peer{AddrPort: netip.MustParseAddrPort(conns[c].LocalAddr().String())}
				out.Push(append(out.Next(), data...), to, netip.Addr{}, 0)
			}
			if failed, err := out.Send(); failed != 0 {
				t.Fatalf("%d datagrams failed: %v", failed, err)
			}
			buf := make([]byte, 2000)
			for c, conn := range conns {
				for i, w := range want[c] {
					_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
					if n, err := conn.Read(buf); err != nil || string(buf[:n]) != w {
						t.Errorf("client %d, datagram %d: got %d bytes %.8q, %v, want %d", c, i, n, buf[:n], err, len(w))
					}
				}
			}
		})
	}
}

func TestListenNamesWhatIsTaken(t *testing.T) {
	_, ns := loopback(t, "127.0.0.1:69")
	for at, want := range map[string]string{
		"127.0.0.1:69": "failed to listen on udp 127.0.0.1:69: taken by another socket (ss -lunp names it): bind: address already in use",
		"[::]:69":      "failed to listen on udp port 69: taken by another socket (ss -lunp names it): bind: address already in use",
		"192.0.2.1:69": "failed to listen on udp 192.0.2.1:69: the address is on none of our interfaces: bind: cannot assign requested address",
	} {
		err := ns.Try(func() error {
			_, err := Listen(netip.MustParseAddrPort(at))
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
func (e *echoes) Unreachable(*Worker[int], *Session[int])         {}
func (e *echoes) Due(*Worker[int], *Session[int])                 {}
func (e *echoes) Closed(_ *Worker[int], _ *Session[int], why End) { e.closed[why]++ }
func (e *echoes) Lost(uint32)                                     {}
func (e *echoes) Unsent(int, error)                               {}

// iterate is one iteration of the loop of Run.
func (w *Worker[T]) iterate(t testing.TB) {
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
		listener, err := Listen(netip.MustParseAddrPort("127.0.0.1:69"))
		if err != nil {
			return err
		}
		if server, err = Open(netip.MustParseAddr("127.0.0.1")); err != nil {
			return err
		}
		if client, err = bound(netip.MustParseAddr("127.0.0.1"), 0, false); err != nil { // not one of our own
			return err
		}
		endpoint := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), server.Local().Port())
		w, err = NewWorker[int](listener, &echoes{closed: map[End]int{}}, Options{
			Limits: NewLimits(Bounds{MaxSessions: 10, MaxSessionsPerClient: 10, Idle: time.Hour, Linger: time.Hour}),
			Pick:   func(netip.Addr) (netip.AddrPort, error) { return endpoint, nil },
		})
		if err != nil {
			return err
		}
		w.now = time.Now()
		// The first exchange opens the session here, inside of the namespace.
		b := NewRecvBatch()
		defer b.Close()
		roundTrip(t, w, client, server, b, []byte("first"))
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
func roundTrip(t testing.TB, w *Worker[int], client, server *Socket, b *RecvBatch, data []byte) {
	front := Peer{AddrPort: w.listener.Local()}
	if err := client.SendTo(data, front); err != nil {
		t.Fatal(err)
	}
	w.iterate(t)
	if err := b.Receive(server, 1); err != nil || b.Len() != 1 || !bytes.Equal(b.Data(0), data) {
		t.Fatalf("the server got %d datagrams, %v", b.Len(), err)
	}
	if err := server.SendTo(data, b.Peer(0)); err != nil {
		t.Fatal(err)
	}
	w.iterate(t)
	if err := b.Receive(client, 1); err != nil || b.Len() != 1 || !bytes.Equal(b.Data(0), data) || b.Peer(0) != front {
		t.Fatalf("the client got %d datagrams from %s, %v", b.Len(), b.Peer(0), err)
	}
}

func TestRelayDoesNotAllocate(t *testing.T) {
	w, client, server := relayed(t)
	b, data := NewRecvBatch(), bytes.Repeat([]byte{1}, 516)
	if n := testing.AllocsPerRun(200, func() { roundTrip(t, w, client, server, b, data) }); n != 0 {
		t.Errorf("got %v allocations a round trip, want none", n)
	}
}

func BenchmarkRelay(b *testing.B) {
	w, client, server := relayed(b)
	batch, data := NewRecvBatch(), bytes.Repeat([]byte{1}, 516)
	b.ReportAllocs()
	for b.Loop() {
		roundTrip(b, w, client, server, batch, data)
	}
}

func TestWakeEndsRun(t *testing.T) {
	socket, _ := loopback(t, "127.0.0.1:69")
	w, err := NewWorker[int](socket, &echoes{closed: map[End]int{}}, Options{
		Limits: NewLimits(Bounds{MaxSessions: 10, MaxSessionsPerClient: 10, Idle: time.Hour, Linger: time.Hour}),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A batch's 4 MiB, of which hardly any are ever used, must not set the pace of garbage collection.
func TestBatchIsOutsideOfTheHeap(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	in, out := NewRecvBatch(), NewSendBatch(&Socket{}, false)
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > mmsg.Batch*bufferSize/8 {
		t.Errorf("two batches took %d bytes of the heap", grown)
	}
	for range 2 {
		in.Close()
		out.Close()
	}
}
