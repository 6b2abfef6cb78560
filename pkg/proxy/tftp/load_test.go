package tftp

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// lossy drops one datagram in n, the same ones in each run.
func lossy(n int) func() bool {
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(1, 2))
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		return r.IntN(n) == 0
	}
}

func TestManyClientsWithLoss(t *testing.T) {
	t.Parallel()
	clients := 100
	if testing.Short() {
		clients = 30
	}
	l := newLab(t)
	want := content(20_000)
	(&fileServer{files: map[string][]byte{"f": want}, lose: lossy(50)}).listen(t, l.server, serverIP+":69")
	f := l.front(t, Config{Pick: to(serverIP + ":69"), MaxSessionsPerClient: 2 * clients})
	lose := lossy(50)
	var running sync.WaitGroup
	var failed atomic.Int32
	for range clients {
		running.Go(func() {
			got, err := fetch{file: "f", lose: lose, tries: 50}.run(l.client, proxyIP+":69")
			if err != nil || !bytes.Equal(got, want) {
				failed.Add(1)
				t.Errorf("got %d bytes, %v", len(got), err)
			}
		})
	}
	running.Wait()
	if n := failed.Load(); n > 0 {
		t.Fatalf("%d of %d clients failed", n, clients)
	}
	// A request repeated too early may begin a second transfer at the server: a stranger, rightly.
	if got := f.drops(DropUnexpected) + f.drops(datagram.DropTableFull); got != 0 {
		t.Errorf("%d datagrams of honest peers dropped", got)
	}
}

// A flood of requests from one address neither fills the table nor keeps another client from its file.
func TestRequestFlood(t *testing.T) {
	l := newLab(t)
	l.client.Addr(t, "c0", "192.0.2.66/24")
	want := content(50_000)
	server := &fileServer{files: map[string][]byte{"f": want}}
	server.listen(t, l.server, serverIP+":69")
	const perClient = 16
	f := l.front(t, Config{Pick: to(serverIP + ":69"), MaxSessionsPerClient: perClient, Idle: 5 * time.Second})
	before := descriptors(t)

	conn := l.raw(t)
	front := netip.MustParseAddrPort(proxyIP + ":69")
	stop := make(chan struct{})
	var flooding sync.WaitGroup
	flooding.Go(func() {
		for port := uint16(1024); ; port++ {
			select {
			case <-stop:
				return
			default:
			}
			conn.send(t, netip.AddrPortFrom(netip.MustParseAddr("192.0.2.66"), max(port, 1)), front, rrq("f"))
			if port%64 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	})
	for range 3 {
		got, err := fetch{file: "f", tries: 50}.run(l.client, proxyIP+":69")
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
	}
	// The files may be there before the flood is one.
	testwait.Until(t, "floods refused", func() bool { return f.drops(datagram.DropClientLimit) > 1000 })
	close(stop)
	flooding.Wait()
	if got := f.Sessions(); got > perClient+3 {
		t.Errorf("%d sessions, want at most %d of the flood", got, perClient)
	}
	// The server is in this process, too, and keeps the sockets of those that gave way until it has asked them often enough.
	servers := int(server.sockets.Load())
	if after := descriptors(t) - servers; after > before+perClient+8 {
		t.Errorf("%d descriptors beside the server's %d, %d before the flood", after, servers, before)
	}
}

// Datagrams from port 0 and from our own address cannot be answered.
func TestImpossibleSources(t *testing.T) {
	l := newLab(t)
	l.silentServer(t, serverIP+":69")
	f := l.front(t, Config{Pick: to(serverIP + ":69")})
	conn := l.raw(t)
	front := netip.MustParseAddrPort(proxyIP + ":69")
	conn.send(t, netip.MustParseAddrPort(clientIP+":0"), front, rrq("f"))
	testwait.Until(t, "port 0", func() bool { return f.drops(datagram.DropPortZero) == 1 })
	// A reflection: an ERROR or a DATA that seems to come from another server's port 69.
	for _, b := range [][]byte{strangerError, {0, opData, 0, 1}, {0, opOack}} {
		conn.send(t, netip.MustParseAddrPort(clientIP+":69"), front, b)
	}
	testwait.Until(t, "reflections", func() bool { return f.drops(DropNoSession) == 3 })
	if f.Sessions() != 0 {
		t.Errorf("%d sessions of forged datagrams", f.Sessions())
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// ipv4 builds an IPv4 datagram with whatever source.
func ipv4(from, to netip.AddrPort, payload []byte) []byte {
	b := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0}
	src, dst := from.Addr().As4(), to.Addr().As4()
	b = append(append(b, src[:]...), dst[:]...)
	b = binary.BigEndian.AppendUint16(b, from.Port())
	b = binary.BigEndian.AppendUint16(b, to.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = binary.BigEndian.AppendUint16(b, 0) // no checksum
	b = append(b, payload...)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b
}
