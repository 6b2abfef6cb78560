package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
)

// status reads a figure in KiB from /proc/pid/status.
func (p *process) status(t *testing.T, field string) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, found := strings.CutPrefix(line, field+":"); found {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s", field)
	return 0
}

// TestFloodOfRandomMACs: memory is bounded, and a real client is served meanwhile and afterwards, each time that it asks
// no more than five times, unless the kernel drops what the relay does not read in time.
func TestFloodOfRandomMACs(t *testing.T) {
	if testing.Short() {
		t.Skip("sends a million packets; run without -short")
	}
	flood, tries := 1_000_000, 20
	if raceDetector() {
		flood = 200_000 // the relay is some ten times slower
	}
	l := newLab(t)
	p := l.start(t, "LOG_LEVEL=warn")
	p.waitReady(t)
	l.served(t)
	// The server answers the real client and nobody else.
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		b := make([]byte, 4096)
		for {
			n, from, err := l.smee.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if n > 243 && net.HardwareAddr(b[28:34]).String() == clientMAC.String() {
				b[0], b[242] = 2, byte(dhcpv4.MessageTypeAck) // the type comes first
				copy(b[16:], clientIP.AsSlice())
				_, _ = l.smee.WriteToUDPAddrPort(b[:n], from)
			}
		}
	}()
	_ = l.smee.SetReadDeadline(time.Time{})
	random := rawSocket(t, l.client, "lan0", 0x88b5)
	b := append(make([]byte, frame.HeaderLen), discover(t).ToBytes()...)
	header := frame.Header{
		SrcMAC: frame.MAC(clientMAC), DstMAC: frame.Broadcast, Dst: [4]byte{255, 255, 255, 255}, SrcPort: 68, DstPort: 67,
	}
	everybody := &packet.Addr{HardwareAddr: frame.Broadcast[:]}
	answered := 0
	for i := range flood {
		binary.BigEndian.PutUint32(b[frame.HeaderLen+4:], uint32(i))
		binary.BigEndian.PutUint32(b[frame.HeaderLen+30:], uint32(i)*2654435761)
		header.Put(b)
		if _, err := random.WriteTo(b, everybody); err != nil {
			t.Fatal(err)
		}
		if (i+1)%(flood/tries) == 0 {
			answered += l.tries(t)
		}
	}
	// The flood comes as fast as this machine can send. What the kernel drops has never reached the relay.
	least := tries
	if p.metric(`dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="overflow"}`) > 0 {
		least = tries / 2
	}
	if answered < least {
		t.Errorf("the real client was answered %d times of %d during the flood, want %d", answered, tries, least)
	}
	if peak := p.status(t, "VmHWM"); peak > limitRSS() {
		t.Errorf("got a peak of %d KiB", peak)
	}
	testwait.Until(t, "the client is served again", func() bool { return l.tries(t) == 1 })
	l.smee.Close()
	<-stop
	t.Logf("answered %d of %d during the flood, peak memory %d KiB", answered, tries, p.status(t, "VmHWM"))
}

// limitRSS bounds the peak memory in KiB: 40 MiB, and what the race detector takes on top.
func limitRSS() int {
	if raceDetector() {
		return 400 << 10
	}
	return 40 << 10
}

// raceDetector tells whether this is a build of go test -race.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// TestKernelDropsAreCounted: what arrives while the relay is stopped, beyond its socket's buffer.
func TestKernelDropsAreCounted(t *testing.T) {
	l := newLab(t)
	p := l.start(t)
	p.waitReady(t)
	if err := p.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	m := discover(t).ToBytes()
	for range 20000 {
		l.broadcast(t, m)
	}
	if err := p.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	const lost = `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="overflow"}`
	testwait.Until(t, "the lost requests are counted", func() bool {
		l.broadcast(t, m)
		return p.metric(lost) > 1000
	})
}

// tries has the real client ask up to five times, as patiently as clients are, and returns 1 if it was answered.
func (l *lab) tries(t *testing.T) int {
	t.Helper()
	b := make([]byte, 4096)
	for wait := 100 * time.Millisecond; wait < 3*time.Second; wait *= 2 { // as clients do, RFC 2131 section 4.1
		l.broadcast(t, discover(t).ToBytes())
		_ = l.lan.SetReadDeadline(time.Now().Add(wait))
		for {
			n, _, err := l.lan.ReadFrom(b)
			if err != nil {
				break
			}
			if datagram, fault := frame.Parse(b[:n], frame.Verify); fault == frame.OK && datagram.Dst.Port() == 68 {
				return 1
			}
		}
	}
	return 0
}

// TestBurstArrivesPacketByPacket: what a batch sends is to a UDP socket what each machine sent, also where it has to be
// fragmented.
func TestBurstArrivesPacketByPacket(t *testing.T) {
	for name, mtu := range map[string]int{"whole": 1500, "fragments": 576} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			p := l.start(t)
			p.waitReady(t)
			l.served(t) // the path's neighbours are known
			if err := l.pod.Links().LinkSetMTU(l.pod.Link(t, "eth0"), mtu); err != nil {
				t.Fatal(err)
			}
			// While the relay is stopped its socket fills, so that it finds a batch.
			if err := p.Process.Signal(unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			const burst = 80 // more would not fit the server's socket
			want := map[string]bool{}
			for i := range burst {
				m := discover(t, dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(224), make([]byte, 250))),
					dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(225), make([]byte, 100)))).ToBytes()
				m[32], m[33] = byte(i>>8), byte(i)
				if i == 40 {
					m = append(m, 0, 0, 0) // another length in between
				}
				l.broadcast(t, m)
				m[3] = 1
				copy(m[24:], podIP.AsSlice())
				want[string(m)] = true
			}
			if err := p.Process.Signal(unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			for i := range burst {
				got, _ := receive(t, l.smee)
				if !want[string(got)] {
					t.Fatalf("request %d is none that was sent: %d bytes", i, len(got))
				}
				delete(want, string(got))
			}
			silent(t, l.smee)
			_, metrics := p.page("/metrics")
			if !strings.Contains(metrics, `{direction="to-server",listener="macvlan0",reason="send-failed"} 0`) {
				t.Error("a request could not be sent")
			}
		})
	}
}
