package clients_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/test/e2e/clients"
	"github.com/tinkerbell/stack/test/e2e/lab"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// lease is short, so that a whole life fits a test: renewing after 12 s, rebinding after 21 s. It is the shortest
// that every client takes.
const lease = 24 * time.Second

func machines(n int) []lab.Machine {
	all := make([]lab.Machine, n)
	for i := range all {
		all[i] = lab.Machine{
			Name:  fmt.Sprintf("m%d", i+1),
			MAC:   net.HardwareAddr{0x52, 0x54, 0, 0, 1, byte(i + 1)},
			IP:    netip.AddrFrom4([4]byte{192, 0, 2, byte(101 + i)}),
			Lease: lease,
		}
	}
	return all
}

// TestLease takes every client through the life of a lease, from DISCOVER to RELEASE, with Smee behind the relay.
func TestLease(t *testing.T) {
	t.Parallel() // labs do not see each other
	all := machines(len(clients.All))
	l := lab.ForTest(t, lab.Options{Machines: all, Without: []string{lab.Hegel, lab.StackProxy}})
	t.Run("clients", func(t *testing.T) { // waits for its parallel tests, before the lab goes
		for i, client := range clients.All {
			t.Run(client.Name, func(t *testing.T) {
				t.Parallel()
				if err := client.Missing(); err != nil {
					t.Skip(err)
				}
				testLease(t, l, client, all[i])
			})
		}
	})
}

// follow starts a client on a host whose wire is watched from before. Of a test that fails it shows what the client and
// the relay have logged.
func follow(t *testing.T, l *lab.Lab, client clients.Client, host string) (*clients.Wire, *clients.Running) {
	t.Helper()
	wire, err := clients.Watch(l, host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Close)
	running, err := client.Start(l, host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, path := range []string{running.LogPath(), l.LogPath(lab.DHCPRelay)} {
				said, _ := os.ReadFile(path)
				t.Logf("%s:\n%s", path, said)
			}
		}
	})
	return wire, running
}

func testLease(t *testing.T, l *lab.Lab, client clients.Client, m lab.Machine) {
	host, err := l.AddHost(m.Name, m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	wire, running := follow(t, l, client, host)
	next := func(timeout time.Duration, kind dhcpv4.MessageType) clients.Seen {
		t.Helper()
		seen, err := wire.Next(t.Context(), timeout, clients.Of(kind, m.MAC))
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		return seen
	}

	next(10*time.Second, dhcpv4.MessageTypeDiscover)
	checkReply(t, m, next(10*time.Second, dhcpv4.MessageTypeOffer))
	next(10*time.Second, dhcpv4.MessageTypeRequest)
	checkReply(t, m, next(10*time.Second, dhcpv4.MessageTypeAck))
	// What a client's script does.
	if !client.Configures {
		if err := l.Configure(host, netip.PrefixFrom(m.IP, lab.LAN.Bits()), lab.GatewayIP); err != nil {
			t.Fatal(err)
		}
	}

	// RENEWING, RFC 2131 section 4.3.2: unicast to the server, which is the service IP.
	if running.RenewsOnDemand() {
		time.Sleep(time.Second) // the client binds
		if err := running.Renew(); err != nil {
			t.Fatal(err)
		}
	}
	renewing := next(lease, dhcpv4.MessageTypeRequest)
	if !renewing.Unicast() || renewing.Dst != netip.AddrPortFrom(lab.ServiceIP, 67) {
		t.Errorf("renewing: got %s, want a unicast to the service IP", renewing)
	}
	ack := next(5*time.Second, dhcpv4.MessageTypeAck)
	checkReply(t, m, ack)
	if ack.Dst != netip.AddrPortFrom(m.IP, 68) {
		t.Errorf("ACK of the renewal: got %s, want one to %s:68", ack, m.IP)
	}

	// REBINDING: by broadcast, as the server does not answer.
	if err := l.Blackhole(host, lab.ServiceIP, true); err != nil {
		t.Fatal(err)
	}
	rebinding, err := wire.Next(t.Context(), lease+5*time.Second, func(s clients.Seen) bool {
		return clients.Of(dhcpv4.MessageTypeRequest, m.MAC)(s) && !s.Unicast()
	})
	if err != nil {
		t.Fatalf("rebinding: %v", err)
	}
	if !rebinding.Message.ClientIPAddr.Equal(m.IP.AsSlice()) {
		t.Errorf("rebinding: got %s, want ciaddr %s", rebinding, m.IP)
	}
	checkReply(t, m, next(5*time.Second, dhcpv4.MessageTypeAck))
	if err := l.Blackhole(host, lab.ServiceIP, false); err != nil {
		t.Fatal(err)
	}

	// RELEASE: unicast and unanswered; Smee says that it got it.
	time.Sleep(time.Second) // the client binds
	var release clients.Seen
	for range 3 { // dhcpcd loses a signal that comes while it waits for its helper processes
		if err := running.Release(); err != nil {
			t.Fatal(err)
		}
		release, err = wire.Next(t.Context(), 10*time.Second, clients.Of(dhcpv4.MessageTypeRelease, m.MAC))
		if err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("release: %v", err)
	}
	if !release.Unicast() || release.Dst.Addr() != lab.ServiceIP {
		t.Errorf("release: got %s, want a unicast to the service IP", release)
	}
	err = lab.Line(t.Context(), l.LogPath(lab.Smee), func(line string) bool {
		return strings.Contains(line, "received DHCP release packet") && strings.Contains(line, m.MAC.String())
	})
	if err != nil {
		t.Errorf("Smee did not log the release: %v", err)
	}
}

// TestReboot has dhclient come back with a lease that it remembers: INIT-REBOOT, RFC 2131 section 4.3.2, a REQUEST
// by broadcast without a server identifier.
func TestReboot(t *testing.T) {
	t.Parallel() // labs do not see each other
	client := clients.Dhclient
	if err := client.Missing(); err != nil {
		t.Skip(err)
	}
	m := machines(1)[0]
	l := lab.ForTest(t, lab.Options{Machines: []lab.Machine{m}, Without: []string{lab.Hegel, lab.StackProxy}})
	host, err := l.AddHost(m.Name, m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := clients.Watch(l, host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Close)
	next := func(kind dhcpv4.MessageType) clients.Seen {
		t.Helper()
		seen, err := wire.Next(t.Context(), 15*time.Second, clients.Of(kind, m.MAC))
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		return seen
	}
	running, err := client.Start(l, host)
	if err != nil {
		t.Fatal(err)
	}
	next(dhcpv4.MessageTypeAck)
	// The lease is in its file when it says so.
	err = lab.Line(t.Context(), running.LogPath(), func(line string) bool { return strings.HasPrefix(line, "bound to ") })
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Kill(running.Name()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Start(l, host); err != nil {
		t.Fatal(err)
	}
	request := next(dhcpv4.MessageTypeRequest)
	if request.Unicast() || request.Message.ServerIdentifier() != nil ||
		!request.Message.RequestedIPAddress().Equal(m.IP.AsSlice()) {
		t.Errorf("got %s, server identifier %s, requested %s; want a broadcast for %s without a server identifier",
			request, request.Message.ServerIdentifier(), request.Message.RequestedIPAddress(), m.IP)
	}
	checkReply(t, m, next(dhcpv4.MessageTypeAck))
}

// checkReply checks what every answer of Smee through the relay has in common.
func checkReply(t *testing.T, m lab.Machine, s clients.Seen) {
	t.Helper()
	if got := s.Src; got != netip.AddrPortFrom(lab.ServiceIP, 67) {
		t.Errorf("%s: the source is not the service IP's port 67", s)
	}
	if !s.Message.YourIPAddr.Equal(m.IP.AsSlice()) {
		t.Errorf("%s: got yiaddr %s, want %s", s, s.Message.YourIPAddr, m.IP)
	}
	if !s.Message.ServerIdentifier().Equal(lab.ServiceIP.AsSlice()) {
		t.Errorf("%s: got server identifier %s, want %s", s, s.Message.ServerIdentifier(), lab.ServiceIP)
	}
	if got := s.Message.IPAddressLeaseTime(0); got != lease {
		t.Errorf("%s: got a lease of %s, want %s", s, got, lease)
	}
	if !s.Message.IsBroadcast() && s.EthDst.String() != m.MAC.String() {
		t.Errorf("%s: the client wants a unicast, the frame goes to %s", s, s.EthDst)
	}
}

func requireDnsmasq(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		t.Skipf("needs Debian's package dnsmasq-base: %v", err)
	}
}

// TestProxyMode has the site's own DHCP server give addresses and Smee only say what to boot: a PXE client hears
// both.
func TestProxyMode(t *testing.T) {
	t.Parallel() // labs do not see each other
	requireDnsmasq(t)
	client := clients.Udhcpc
	if err := client.Missing(); err != nil {
		t.Skip(err)
	}
	m := machines(1)[0]
	l := lab.ForTest(t, lab.Options{
		Machines: []lab.Machine{m},
		Without:  []string{lab.Hegel, lab.StackProxy},
		Args:     map[string][]string{lab.Smee: {"-dhcp-mode", "proxy"}},
	})
	site := netip.MustParseAddr("192.0.2.3")
	first, last := netip.MustParseAddr("192.0.2.150"), netip.MustParseAddr("192.0.2.160")
	if _, err := l.AddDHCPServer("site-dhcp", site, first, last); err != nil {
		t.Fatal(err)
	}
	host, err := l.AddHost(m.Name, m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := clients.Watch(l, host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Close)
	// What firmware says of itself: UEFI x86-64, UNDI, a UUID (RFC 4578).
	_, err = client.Start(l, host, "-V", "PXEClient:Arch:00007:UNDI:003016",
		"-x", "0x5d:0007", "-x", "0x5e:010310", "-x", "0x61:00"+strings.Repeat("ab", 16))
	if err != nil {
		t.Fatal(err)
	}
	var offers [2]clients.Seen
	for i := range offers {
		offers[i], err = wire.Next(t.Context(), 10*time.Second, func(s clients.Seen) bool {
			return clients.Of(dhcpv4.MessageTypeOffer, m.MAC)(s) && (i == 0 || s.Src != offers[0].Src)
		})
		if err != nil {
			t.Fatalf("offer %d: %v", i+1, err)
		}
	}
	ours, theirs := offers[0], offers[1]
	if ours.Src.Addr() == site {
		ours, theirs = theirs, ours
	}
	if ours.Src != netip.AddrPortFrom(lab.ServiceIP, 67) || !ours.Message.YourIPAddr.IsUnspecified() ||
		!strings.Contains(ours.Message.BootFileName, ".efi") {
		t.Errorf("Smee's offer: got %s with boot file %q, want yiaddr 0.0.0.0 and an EFI binary from the service IP",
			ours, ours.Message.BootFileName)
	}
	if got, _ := netip.AddrFromSlice(theirs.Message.YourIPAddr.To4()); got.Less(first) || last.Less(got) {
		t.Errorf("the site's offer: got %s, want an address from %s to %s", theirs, first, last)
	}
	if ours.Dst.Addr().IsUnspecified() {
		t.Errorf("Smee's offer went to %s", ours.Dst)
	}
}
