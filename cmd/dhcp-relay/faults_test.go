package main

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
)

// served asserts that a client gets its answer.
func (l *lab) served(t *testing.T) {
	t.Helper()
	l.broadcast(t, discover(t).ToBytes())
	request, from := receive(t, l.smee)
	send(t, l.smee, answer(t, request, dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(clientIP.AsSlice())), from)
	l.hear(t)
}

// waitNotReady waits until /readyz gives the reason.
func (p *process) waitNotReady(t *testing.T, reason string) {
	t.Helper()
	testwait.Until(t, "not ready: "+reason, func() bool {
		code, body := p.page("/readyz")
		return code == 503 && strings.Contains(body, reason)
	})
}

// waitListening is for relays that never get ready.
func (p *process) waitListening(t *testing.T) {
	t.Helper()
	p.wantMetric(t, `dhcp_relay_listener_up{listener="macvlan0"} 1`)
}

// descriptors counts the relay's open files.
func (p *process) descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// rejoin opens the client's socket anew after its link was replaced.
func (l *lab) rejoin(t *testing.T) {
	t.Helper()
	l.lan.Close()
	l.lan = rawSocket(t, l.client, "lan0", unix.ETH_P_IP)
}

// TestListenerGoneAndBack: the relay goes not ready, waits, opens the new interface and goes on.
func TestListenerGoneAndBack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "CLIENT_RATE=-1")
	p.waitReady(t)
	l.served(t)
	before := p.descriptors(t)
	for range 3 {
		if err := l.pod.Links().LinkDel(l.pod.Link(t, "macvlan0")); err != nil {
			t.Fatal(err)
		}
		p.waitNotReady(t, "no interface macvlan0 here")
		nstest.Veth(t, l.pod, "macvlan0", l.client, "lan0")
		p.waitReady(t)
		l.rejoin(t)
		l.served(t)
	}
	if after := p.descriptors(t); after > before {
		t.Errorf("got %d open files, %d before", after, before)
	}
}

// TestListenerIsMissingAtFirst: broadcast-init may come later than the relay.
func TestListenerIsMissingAtFirst(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	if err := l.pod.Links().LinkDel(l.pod.Link(t, "macvlan0")); err != nil {
		t.Fatal(err)
	}
	p := l.start(t)
	p.waitNotReady(t, "no interface macvlan0 here")
	nstest.Veth(t, l.pod, "macvlan0", l.client, "lan0")
	p.waitReady(t)
	l.rejoin(t)
	l.served(t)
}

// TestParentDownAndUp is the parent's link lost and found 100 times: a macvlan whose parent is down has no carrier.
func TestParentDownAndUp(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "CLIENT_RATE=-1")
	p.waitReady(t)
	before := p.descriptors(t)
	peer := l.client.Link(t, "lan0")
	for i := range 100 {
		if err := l.client.Links().LinkSetDown(peer); err != nil {
			t.Fatal(err)
		}
		if i%10 == 0 {
			p.waitNotReady(t, "has no carrier")
		}
		if err := l.client.Links().LinkSetUp(peer); err != nil {
			t.Fatal(err)
		}
	}
	p.waitReady(t)
	l.rejoin(t)
	l.served(t)
	if after := p.descriptors(t); after > before {
		t.Errorf("got %d open files, %d before", after, before)
	}
}

// TestMACChanges: replies carry the interface's present address.
func TestMACChanges(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.start(t, "CLIENT_RATE=-1").waitReady(t)
	mac := net.HardwareAddr{0x02, 0xaa, 0, 0, 0, 7}
	if err := l.pod.Links().LinkSetHardwareAddr(l.pod.Link(t, "macvlan0"), mac); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "an offer from the new address", func() bool {
		got := l.offered(t, dhcpv4.MessageTypeOffer)
		return got.SrcMAC == frame.MAC(mac)
	})
}

// TestPodAddressChanges: giaddr follows.
func TestPodAddressChanges(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "CLIENT_RATE=-1")
	p.waitReady(t)
	l.served(t)
	eth0 := l.pod.Link(t, "eth0")
	old, err := netlink.ParseAddr(podIP.String() + "/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.pod.Links().AddrDel(eth0, old); err != nil {
		t.Fatal(err)
	}
	p.waitNotReady(t, "giaddr")
	l.pod.Addr(t, "eth0", "10.244.0.20/24")
	p.waitReady(t)
	l.broadcast(t, discover(t).ToBytes())
	request, from := receive(t, l.smee)
	want := netip.MustParseAddr("10.244.0.20")
	if giaddr := netip.AddrFrom4([4]byte(request[24:28])); giaddr != want || from.Addr() != want {
		t.Errorf("got giaddr %v from %v", giaddr, from)
	}
}

// TestUpstreamInterfaceGivesGiaddr: tinkerbell/tinkerbell#261, aws/eks-anywhere#9035, a wrong source interface.
func TestUpstreamInterfaceGivesGiaddr(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod.Addr(t, "eth0", "10.244.0.30/24")
	for _, test := range []struct{ env, want string }{
		{"UPSTREAM=eth0", podIP.String()},
		{"UPSTREAM=10.244.0.30", "10.244.0.30"},
	} {
		p := l.start(t, test.env)
		p.waitReady(t)
		l.broadcast(t, discover(t).ToBytes())
		request, from := receive(t, l.smee)
		giaddr := netip.AddrFrom4([4]byte(request[24:28])).String()
		if giaddr != test.want || from.Addr().String() != test.want {
			t.Errorf("%s: got giaddr %v from %v", test.env, giaddr, from)
		}
		_ = p.Process.Signal(unix.SIGTERM)
		<-p.done
	}
	p := l.start(t, "UPSTREAM=nope0")
	p.waitNotReady(t, "no upstream interface nope0 here")
	_ = p.Process.Signal(unix.SIGTERM)
	<-p.done
	p = l.start(t, "UPSTREAM=10.244.0.31")
	p.waitNotReady(t, "upstream address 10.244.0.31 is on no interface here")
}

// TestServerGoneAndBack: requests are lost meanwhile, and nothing else.
func TestServerGoneAndBack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "CLIENT_RATE=-1")
	p.waitReady(t)
	l.served(t)
	l.smee.Close()
	for range 5 {
		l.broadcast(t, discover(t).ToBytes())
	}
	l.quiet(t)
	l.smee = l.listen(t, l.server, netip.AddrPortFrom(serverIP, 67))
	l.served(t)
}

// TestServerThatDoesNotResolve is told by name, and heals by itself (tinkerbell/charts#56 and #99 are about resolvers).
func TestServerThatDoesNotResolve(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "SERVERS=no-such-server.invalid")
	p.waitNotReady(t, "failed to resolve server no-such-server.invalid")
	p.waitListening(t)
	l.broadcast(t, discover(t).ToBytes())
	p.wantMetric(t, `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="no-server"} 1`)
}

// TestReplicasMatchNothing is the second classic mistake: replies arrive, but none matches.
func TestReplicasMatchNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "DEAD_AFTER=2", "CLIENT_RATE=-1")
	p.waitReady(t)
	for range 4 {
		l.broadcast(t, discover(t).ToBytes())
		request, from := receive(t, l.smee)
		request[7]++ // a server that changes xid
		send(t, l.smee, answer(t, request, dhcpv4.MessageTypeOffer), from)
	}
	testwait.Until(t, "the explanation", func() bool {
		return strings.Contains(p.log.String(), "replies never match a request")
	})
}

// TestGiaddrThatTheServerCannotReach is the third classic mistake.
func TestGiaddrThatTheServerCannotReach(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod.Addr(t, "macvlan0", "192.0.2.9/24")
	p := l.start(t, "UPSTREAM=192.0.2.9")
	p.waitReady(t)
	testwait.Until(t, "the warning", func() bool {
		return strings.Contains(p.log.String(), "server may be unable to answer")
	})
}

// stopped is whether all threads of a process have stopped.
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		stat, err := os.ReadFile(task)
		if err != nil {
			t.Fatal(err)
		}
		_, state, _ := strings.Cut(string(stat), ") ")
		if !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return len(tasks) > 0
}

// TestBurstReachesPacketSockets: a server on the same node that reads by a packet socket gets each request in a frame of
// its own, although several leave by one system call.
func TestBurstReachesPacketSockets(t *testing.T) {
	l := newLab(t)
	p := l.start(t, "CLIENT_RATE=-1")
	p.waitReady(t)
	l.served(t) // the path's neighbours are known
	raw := rawSocket(t, l.server, "eth0", unix.ETH_P_IP)
	if err := p.Process.Signal(unix.SIGSTOP); err != nil { // a busy node: requests wait
		t.Fatal(err)
	}
	testwait.Until(t, "the relay stands still", func() bool { return stopped(t, p.Process.Pid) })
	m := discover(t).ToBytes()
	for i := range 4 {
		m[33] = byte(i)
		l.broadcast(t, m)
	}
	if err := p.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b, frames := make([]byte, 1<<16), 0
	for size := 0; size < 4*len(m); {
		_ = raw.SetReadDeadline(time.Now().Add(patience))
		n, _, err := raw.ReadFrom(b)
		if err != nil {
			t.Fatalf("after %d frames with %d bytes: %v", frames, size, err)
		}
		d, fault := frame.Parse(b[:n], frame.Trust)
		if fault == frame.OK && d.Dst == netip.AddrPortFrom(serverIP, 67) && d.Payload[0] == 1 {
			size += len(d.Payload)
			frames++
		}
	}
	if frames != 4 {
		t.Errorf("got %d frames, want 4", frames)
	}
}

// TestDrainBringsTheLastAnswer: a rolling update loses no offer that is under way.
func TestDrainBringsTheLastAnswer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t)
	p.waitReady(t)
	l.broadcast(t, discover(t).ToBytes())
	request, from := receive(t, l.smee)
	if err := p.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the drain begins", func() bool { return strings.Contains(p.log.String(), `"msg":"draining"`) })
	send(t, l.smee, answer(t, request, dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(clientIP.AsSlice())), from)
	l.hear(t)
	<-p.done
	if code := p.ProcessState.ExitCode(); code != 0 {
		t.Errorf("got exit %d", code)
	}
}

// TestGraceRelaysOn: in the pod of a stack-proxy the relay goes on as long as that, and the pod is ready as long.
func TestGraceRelaysOn(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "DRAIN_GRACE=1h")
	p.waitReady(t)
	if err := p.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the grace begins", func() bool { return strings.Contains(p.log.String(), `"msg":"still serving"`) })
	if code, body := p.page("/readyz"); code != 200 {
		t.Errorf("not ready: %d %s", code, body)
	}
	l.broadcast(t, discover(t).ToBytes())
	receive(t, l.smee)
	if err := p.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.done
}
