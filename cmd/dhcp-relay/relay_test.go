package main

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
)

// TestOfferReachesTheClient is the relay's main job: the machine's bytes are unchanged but for hops and giaddr, and the
// offer arrives at a machine that has no address yet.
func TestOfferReachesTheClient(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "SOURCE_ADDRESS="+serviceIP.String())
	p.waitReady(t)

	request := discover(t)
	sent := request.ToBytes()
	l.broadcast(t, sent)
	got, from := receive(t, l.smee)
	want := append([]byte(nil), sent...)
	want[3] = 1                              // hops
	copy(want[24:28], podIP.AsSlice())       // giaddr
	want = append(want, make([]byte, 64)...) // RFC 1542 section 2.1
	want = want[:max(300, len(sent))]
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the relayed request differs (-want +got):\n%s", diff)
	}
	if want := netip.AddrPortFrom(podIP, 67); from != want {
		t.Errorf("got source %v, want %v", from, want)
	}

	send(t, l.smee, answer(t, got, dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(clientIP.AsSlice())), from)
	offer := l.hear(t)
	if offer.DstMAC != [6]byte(clientMAC) || offer.Dst != netip.AddrPortFrom(clientIP, 68) ||
		offer.Src != netip.AddrPortFrom(serviceIP, 67) {
		t.Errorf("got offer %v -> %v %x", offer.Src, offer.Dst, offer.DstMAC)
	}
	p.wantMetric(t, `dhcp_relay_packets_total{direction="to-server",listener="macvlan0",type="discover"} 1`)
	p.wantMetric(t, `dhcp_relay_packets_total{direction="to-client",listener="macvlan0",type="offer"} 1`)
	p.wantMetric(t, `dhcp_relay_reply_seconds_count 1`)
}

// confined starts the relay as uid 0 with these capabilities and nothing else.
func confined(mask string) func(*exec.Cmd) {
	return func(c *exec.Cmd) { c.Env = append(c.Env, actConfined+"="+mask) }
}

// ambient starts the relay as another user with ambient capabilities.
func ambient(capabilities ...uintptr) func(*exec.Cmd) {
	return func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{
			Credential:  &syscall.Credential{Uid: 65532, Gid: 65532},
			AmbientCaps: capabilities,
		}
	}
}

// otherUsers tells whether a process can become another user: not where a user namespace has root alone.
func otherUsers(t *testing.T) bool {
	t.Helper()
	ids, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(ids))
	return os.Geteuid() == 0 && len(fields) >= 3 && len(fields[2]) > 4 // tens of thousands of users
}

// unprivilegedPorts is what containerd and CRI-O set in a pod.
func unprivilegedPorts(t *testing.T, ns *nstest.NS) {
	t.Helper()
	ns.Do(t, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_unprivileged_port_start", []byte("0"), 0)
	})
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	const raw, bind = "2000", "2400"
	tests := map[string]struct {
		how   func(*exec.Cmd)
		sysfs bool
		fails string
	}{
		"uid 0, NET_RAW and NET_BIND_SERVICE":       {how: confined(bind)},
		"uid 0, NET_RAW, unprivileged port 67":      {how: confined(raw), sysfs: true},
		"uid 65532, NET_RAW, unprivileged port 67":  {how: ambient(unix.CAP_NET_RAW), sysfs: true},
		"uid 65532, NET_RAW and NET_BIND_SERVICE":   {how: ambient(unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE)},
		"uid 0, NET_RAW only, port 67 privileged":   {how: confined(raw), fails: "needs the capability NET_BIND_SERVICE"},
		"uid 0, no NET_RAW":                         {how: confined("400"), fails: "needs the capability NET_RAW"},
		"uid 65532, nothing, unprivileged port 67 ": {how: ambient(), sysfs: true, fails: "needs the capability NET_RAW"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			if strings.HasPrefix(name, "uid 65532") && !otherUsers(t) {
				t.Skip("needs root outside of a user namespace to run the relay as another user")
			}
			if test.sysfs {
				unprivilegedPorts(t, l.pod)
			}
			p := l.startWith(t, test.how)
			if test.fails != "" {
				<-p.done
				if code := p.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.log.String(), test.fails) {
					t.Errorf("got exit %d, want 1 and %q in the log:\n%s", code, test.fails, p.log)
				}
				return
			}
			p.waitReady(t)
			l.broadcast(t, discover(t).ToBytes())
			got, from := receive(t, l.smee)
			send(t, l.smee, answer(t, got, dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(clientIP.AsSlice())), from)
			l.hear(t)
		})
	}
}

// TestUnicastNeedsNoListener: listenBroadcastTraffic=false works without any capability.
func TestUnicastNeedsNoListener(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	unprivilegedPorts(t, l.pod)
	how := confined("0")
	if otherUsers(t) {
		how = ambient()
	}
	p := l.startWith(t, how, "LISTENERS=none")
	p.waitReady(t)
	router := l.listen(t, l.server, netip.AddrPortFrom(serverIP, 6868))
	renew := discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(clientIP.AsSlice()))
	send(t, router, renew.ToBytes(), netip.AddrPortFrom(podIP, 67))
	got, from := receive(t, l.smee)
	send(t, l.smee, answer(t, got, dhcpv4.MessageTypeAck, dhcpv4.WithYourIP(clientIP.AsSlice())), from)
	ack, source := receive(t, router)
	if source != netip.AddrPortFrom(podIP, 67) {
		t.Errorf("got an answer from %v, want it from the address and port that were asked", source)
	}
	parsed, err := dhcpv4.FromBytes(ack)
	if err != nil {
		t.Fatal(err)
	}
	if !parsed.GatewayIPAddr.Equal(net.IPv4zero) || parsed.MessageType() != dhcpv4.MessageTypeAck {
		t.Errorf("got %s", parsed.Summary())
	}
}

func TestPortTakenIsOneMessage(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.listen(t, l.pod, netip.MustParseAddrPort("0.0.0.0:67"))
	p := l.start(t)
	<-p.done
	if code := p.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.log.String(), "failed to bind UDP port 67") {
		t.Errorf("got exit %d", code)
	}
}
