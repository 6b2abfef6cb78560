package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// forger sends from addresses that are not its own, and sees no answer.
type forger struct {
	rawSocket
	from func(i int) netip.AddrPort
	at   netip.AddrPort
	// guesses follow each request.
	guesses [][]byte
}

// neighbours are sources in the client's LAN, with whatever port.
func neighbours(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), uint16(1024+i%60000))
}

func (l *lab) forger(t testing.TB, guesses ...[]byte) *forger {
	return &forger{rawSocket: l.raw(t), from: neighbours, at: netip.MustParseAddrPort(proxyIP + ":69"), guesses: guesses}
}

func ack(n uint16) []byte { return binary.BigEndian.AppendUint16([]byte{0, opAck}, n) }

// burst sends n requests, waits until the proxy has had them answered, and guesses.
func (f *forger) burst(t testing.TB, n int, answered func() bool) {
	t.Helper()
	for i := range n {
		f.send(t, f.from(i), f.at, rrq("f"))
	}
	testwait.Until(t, "the forged requests answered", answered)
	for i := range n {
		for _, guess := range f.guesses {
			f.send(t, f.from(i), f.at, guess)
		}
	}
}

// flood sends so many datagrams a second until it is stopped: requests, and some milliseconds later the guesses.
// Stop returns the number of datagrams.
func (f *forger) flood(t testing.TB, perSecond int) (stop func() int) {
	end := make(chan struct{})
	var running sync.WaitGroup
	sent := 0
	running.Go(func() {
		delayed := max(perSecond/100, 1) // requests that wait for their guesses
		began := time.Now()
		for i := rand.IntN(1 << 20); ; i++ {
			for at := -1; at < len(f.guesses); at++ {
				for float64(sent) > time.Since(began).Seconds()*float64(perSecond) {
					select {
					case <-end:
						return
					case <-time.After(time.Millisecond):
					}
				}
				sent++
				if at < 0 {
					f.send(t, f.from(i), f.at, rrq("f"))
				} else if i > delayed {
					f.send(t, f.from(i-delayed), f.at, f.guesses[at])
				}
			}
			select {
			case <-end:
				return
			default:
			}
		}
	})
	return func() int {
		close(end)
		running.Wait()
		return sent
	}
}

// steadyServer serves the file f of so many bytes from one port, and remembers nobody: it is not what a flood brings
// down. It returns the number of requests.
func (l *lab) steadyServer(t testing.TB, file []byte) *atomic.Int64 {
	t.Helper()
	requests := new(atomic.Int64)
	for _, at := range []string{serverIP, server6} {
		var conn *net.UDPConn
		l.server.Do(t, func() (err error) {
			conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(at), 69)))
			return err
		})
		if raw, err := conn.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) })
		}
		var running sync.WaitGroup
		running.Go(func() {
			buf, out := make([]byte, 1500), make([]byte, 0, 600)
			for {
				n, from, err := conn.ReadFromUDPAddrPort(buf)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				next := uint16(1)
				switch op, _ := opcode(buf[:n]); {
				case op == opRead:
					requests.Add(1)
				case op == opAck && n >= 4:
					next = binary.BigEndian.Uint16(buf[2:]) + 1
				default:
					continue
				}
				begin := (int(next) - 1) * defaultBlock
				if begin < 0 || begin > len(file) {
					continue
				}
				out = binary.BigEndian.AppendUint16(append(out[:0], 0, opData), next)
				out = append(out, file[begin:min(begin+defaultBlock, len(file))]...)
				_, _ = conn.WriteToUDPAddrPort(out, from)
			}
		})
		t.Cleanup(func() {
			_ = conn.Close()
			running.Wait()
		})
	}
	return requests
}

// answered is the number of datagrams that servers sent and that were passed on.
func (f *Front) answered() int {
	return int(counter(f.handler.meters.traffic.Datagrams[datagram.FromServer]))
}

// An ACK of a block that was not sent confirms nothing: the finding's 64 addresses with their request and their blind
// ACK 7 hold no places against a machine.
func TestBlindAckConfirmsNothing(t *testing.T) {
	l := newLab(t)
	want := content(5000)
	l.steadyServer(t, want)
	const places = 16
	f := l.front(t, Config{Pick: to(serverIP + ":69"), MaxSessions: places})
	blind := l.forger(t, ack(7), ack(2), ack(0), ack(65535))
	blind.burst(t, places, func() bool { return f.answered() >= places })
	got, err := fetch{file: "f", tries: 5}.run(l.client, proxyIP+":69")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("a machine gets %d bytes: %v", len(got), err)
	}
	if got := f.outcomes(EndingEvicted); got != 1 {
		t.Errorf("%d of the forged gave way, want 1", got)
	}
}

// Nor does a right guess hold a place for long, and a transfer that moves outlives all that do not.
func TestRightGuessHoldsNoPlaceForLong(t *testing.T) {
	l := newLab(t)
	want := content(20_000)
	l.steadyServer(t, want)
	const places = 16
	var reported atomic.Int32
	f := l.front(t, Config{
		Pick: to(serverIP + ":69"), MaxSessions: places,
		Report: func(_ netip.AddrPort, err error) {
			if err != nil {
				reported.Add(1)
			}
		},
	})
	machine := l.udp(t)
	defer machine.Close()
	exchange(t, machine, rrq("f"), proxyIP+":69")
	for n := range uint16(8) {
		exchange(t, machine, ack(n+1), proxyIP+":69")
	}
	guessing := l.forger(t, ack(1))
	guessing.burst(t, 4*places, func() bool { return f.drops(datagram.DropTableFull) >= 3*places })
	guessing.burst(t, 4*places, func() bool { return f.outcomes(EndingEvicted) >= places }) // again from the same
	got, err := fetch{file: "f", tries: 5}.run(l.client, proxyIP+":69")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("a machine gets %d bytes: %v", len(got), err)
	}
	if got := exchange(t, machine, ack(9), proxyIP+":69"); len(got) < 4 || got[3] != 10 {
		t.Errorf("the transfer goes on with %d bytes", len(got))
	}
	if f.Sessions() > places {
		t.Errorf("%d sessions", f.Sessions())
	}
	if n := reported.Load(); n != 0 {
		t.Errorf("the endpoint was blamed %d times", n)
	}
}

// raceDetector tells whether this is a build of go test -race.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// Machines with real clients get their files while somebody floods the table with requests from forged addresses and
// with right guesses of their first ACKs.
func TestFloodTakesNoTransfersPlace(t *testing.T) {
	clients := map[string][]string{}
	for name, args := range map[string][]string{
		"tftp": {"-m", "binary", proxyIP, "-c", "get", "f", "got"}, "atftp": {"--get", "-r", "f", "-l", "got", proxyIP},
		"curl":    {"-sS", "-o", "got", "tftp://" + proxyIP + "/f"},
		"busybox": {"tftp", "-g", "-r", "f", "-l", "got", proxyIP},
	} {
		debian := map[string]string{"tftp": "tftp-hpa"}[name]
		clients[name] = append([]string{program(t, name, debian)}, args...)
	}
	want := content(30_000)
	for _, tt := range []struct {
		rate, places int
		guesses      [][]byte
		short        bool
	}{
		{91, 256, [][]byte{ack(7)}, false},
		{2000, 512, [][]byte{ack(1)}, true},
		{20_000, 4096, [][]byte{ack(1)}, false},
		{4000, 2048, [][]byte{rrq("f"), ack(1), ack(2)}, false}, // asks twice, as firmware does
	} {
		t.Run(fmt.Sprintf("%d a second, %d guesses", tt.rate, len(tt.guesses)), func(t *testing.T) {
			if testing.Short() && !tt.short {
				t.Skip("takes some seconds")
			}
			t.Parallel() // each waits mostly for clients that ask again after 5 s
			if raceDetector() && tt.rate > 1000 {
				tt.rate, tt.places = tt.rate/8, tt.places/8 // the proxy is some ten times slower
			}
			l := newLab(t)
			requests := l.steadyServer(t, want)
			f := l.front(t, Config{Pick: to(serverIP + ":69"), MaxSessions: tt.places})
			forger := l.forger(t, tt.guesses...)
			began := time.Now()
			forger.burst(t, tt.places, func() bool { return f.Sessions() >= tt.places*9/10 })
			stop := forger.flood(t, tt.rate)
			var running sync.WaitGroup
			var restarts atomic.Int32
			for name, args := range clients {
				running.Go(func() {
					dir := t.TempDir()
					if err := run(t, l.client, dir, args...); err != nil {
						t.Error(err)
						return
					}
					if got, err := os.ReadFile(filepath.Join(dir, "got")); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s: got %d bytes, %v", name, len(got), err)
					}
				})
			}
			for range 3 {
				running.Go(func() {
					var got []byte
					var err error
					for range 5 { // as firmware begins anew
						if got, err = (fetch{file: "f", tries: 30}).run(l.client, proxyIP+":69"); err == nil {
							break
						}
						restarts.Add(1)
					}
					if err != nil || !bytes.Equal(got, want) {
						t.Errorf("got %d bytes, %v", len(got), err)
					}
				})
			}
			running.Wait()
			sent := stop()
			if f.Sessions() > tt.places+1 {
				t.Errorf("%d sessions", f.Sessions())
			}
			t.Logf("%d forged datagrams in %v; the server saw %d requests; %d gave way, %d were turned away, %d lost; "+
				"machines began anew %d times",
				sent, time.Since(began).Round(time.Millisecond), requests.Load(), f.outcomes(EndingEvicted),
				f.drops(datagram.DropTableFull), f.drops(datagram.DropOverflow), restarts.Load())
		})
	}
}

// Forged requests that bear a machine's own address do not lock it out.
func TestTransferOfAVictimsAddress(t *testing.T) {
	l := newLab(t)
	want := content(20_000)
	l.steadyServer(t, want)
	f := l.front(t, Config{Pick: to(serverIP + ":69")})
	forger := l.forger(t, ack(1))
	forger.from = func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(clientIP), uint16(1024+i%30000))
	}
	stop := forger.flood(t, 3000)
	testwait.Until(t, "the victim's bound reached", func() bool { return f.drops(datagram.DropClientLimit) > 0 })
	for range 3 {
		got, err := fetch{file: "f", tries: 50}.run(l.client, proxyIP+":69")
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("the victim gets %d bytes: %v", len(got), err)
		}
	}
	stop()
	if f.Sessions() > 64 {
		t.Errorf("%d sessions", f.Sessions())
	}
}

// What counts as a step of the client.
func TestWhatCountsAsAClientsStep(t *testing.T) {
	data := func(n uint64) []byte {
		return append(binary.BigEndian.AppendUint16([]byte{0, opData}, uint16(n)), bytes.Repeat([]byte{1}, 512)...)
	}
	oack := []byte("\x00\x06windowsize\x008\x00")
	newTest := func() *transfer {
		r, _ := parseRequest(rrq("f"))
		tr := newTransfer(rrq("f"), r)
		return &tr
	}
	// client passes a datagram as the handler does.
	client := func(tr *transfer, b []byte) bool {
		op, _ := opcode(b)
		step := tr.isStep(op, b)
		tr.reacted = tr.reacted || step
		tr.observe(op, b)
		return step
	}
	want := func(tr *transfer, step bool, what string, b []byte) {
		t.Helper()
		if got := client(tr, b); got != step {
			t.Errorf("%s: a step %v, want %v", what, got, step)
		}
	}
	tr := newTest()
	tr.observe(opData, data(1))
	for _, n := range []uint16{7, 2, 0, 65535, 32768, 32769} {
		want(tr, false, fmt.Sprintf("blind ACK %d", n), ack(n))
	}
	want(tr, true, "ACK 1", ack(1))
	want(tr, false, "ACK 1 again", ack(1))
	for n := uint64(2); n < 200_000; n++ {
		tr.observe(opData, data(n))
		if client(tr, ack(uint16(n+1))) || !client(tr, ack(uint16(n))) || client(tr, ack(uint16(n))) {
			t.Fatalf("block %d: the ACK of the next one, its own or a second one is wrong", n)
		}
	}
	tr = newTest()
	tr.observe(opOack, oack)
	want(tr, false, "ACK 1 of an OACK", ack(1))
	want(tr, true, "ACK 0 of an OACK", ack(0))
	want(tr, false, "ACK 0 again", ack(0))
	for n := range uint64(8) {
		tr.observe(opData, data(n+1))
	}
	want(tr, true, "ACK within the window", ack(5))
	want(tr, false, "ACK behind it", ack(3))
	want(tr, true, "ACK of the whole window", ack(8))
	want(tr, false, "ACK beyond it", ack(9))
}
