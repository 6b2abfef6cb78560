package clients_test

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/test/e2e/clients"
	"github.com/tinkerbell/stack/test/e2e/lab"
)

// TestNAK has clients come back with a lease of another life (INIT-REBOOT, RFC 2131 section 4.3.2). Smee sends no
// NAK, so dnsmasq is the server behind the relay. The client must hear the NAK, forget its address and get a lease.
func TestNAK(t *testing.T) {
	t.Parallel() // labs do not see each other
	requireDnsmasq(t)
	l := lab.ForTest(t, lab.Options{Without: []string{lab.Smee, lab.Hegel, lab.StackProxy}})
	first, last := netip.MustParseAddr("192.0.2.150"), netip.MustParseAddr("192.0.2.160")
	_, err := l.StartDHCPServer("upstream-dhcp", lab.RoleSmee, first, last,
		"--shared-network="+lab.PodIP.String()+","+lab.LAN.Masked().Addr().String()) // what giaddr stands for
	if err != nil {
		t.Fatal(err)
	}
	t.Run("clients", func(t *testing.T) { // waits for its parallel tests, before the lab goes
		i := byte(0)
		for _, client := range clients.All {
			if !client.Remembers() {
				continue // udhcpc -r is a wish in a DISCOVER
			}
			for name, wrong := range map[string]string{
				"other-network": "198.51.100.7", // a machine that was moved
				"out-of-range":  "192.0.2.77",   // a site that was numbered anew
			} {
				i++
				mac := net.HardwareAddr{0x52, 0x54, 0, 0, 2, i}
				t.Run(client.Name+"/"+name, func(t *testing.T) {
					t.Parallel()
					if err := client.Missing(); err != nil {
						t.Skip(err)
					}
					testNAK(t, l, client, client.Name+"-"+name, mac, netip.MustParseAddr(wrong), first, last)
				})
			}
		}
	})
}

func testNAK(
	t *testing.T, l *lab.Lab, client clients.Client, name string, mac net.HardwareAddr, wrong, first, last netip.Addr,
) {
	host, err := l.AddHost(name, mac)
	if err != nil {
		t.Fatal(err)
	}
	wire, err := clients.Watch(l, host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wire.Close)
	ack, err := dhcpv4.New(dhcpv4.WithHwAddr(mac), dhcpv4.WithYourIP(wrong.AsSlice()),
		dhcpv4.WithMessageType(dhcpv4.MessageTypeAck), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithServerIP(lab.ServiceIP.AsSlice()), dhcpv4.WithLeaseTime(24*60*60),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(lab.ServiceIP.AsSlice())))
	if err != nil {
		t.Fatal(err)
	}
	ack.OpCode = dhcpv4.OpcodeBootReply
	running, err := client.Restart(l, host, ack)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(running.LogPath())
			t.Logf("%s says:\n%s", client.Name, log)
		}
	})
	next := func(kind dhcpv4.MessageType) clients.Seen {
		t.Helper()
		seen, err := wire.Next(t.Context(), 20*time.Second, clients.Of(kind, mac))
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		return seen
	}

	request := next(dhcpv4.MessageTypeRequest)
	if m := request.Message; request.Unicast() || m.ServerIdentifier() != nil ||
		!m.RequestedIPAddress().Equal(wrong.AsSlice()) {
		t.Errorf("got %s, server identifier %s, requested %s; want a broadcast for %s without a server identifier",
			request, m.ServerIdentifier(), m.RequestedIPAddress(), wrong)
	}
	nak := next(dhcpv4.MessageTypeNak)
	if nak.Src != netip.AddrPortFrom(lab.ServiceIP, 67) {
		t.Errorf("%s: the source is not the service IP's port 67", nak)
	}
	if nak.EthDst.String() != "ff:ff:ff:ff:ff:ff" || nak.Dst != netip.MustParseAddrPort("255.255.255.255:68") {
		t.Errorf("%s: not a broadcast on both layers", nak)
	}
	if nak.Message.TransactionID != request.Message.TransactionID {
		t.Errorf("%s: it answers %s, want %s", nak, nak.Message.TransactionID, request.Message.TransactionID)
	}

	discover := next(dhcpv4.MessageTypeDiscover)
	if !discover.Out || !discover.Message.ClientIPAddr.IsUnspecified() {
		t.Errorf("after the NAK: got %s, want a client without an address", discover)
	}
	next(dhcpv4.MessageTypeOffer)
	selecting := next(dhcpv4.MessageTypeRequest)
	if selecting.Message.ServerIdentifier() == nil {
		t.Errorf("after the OFFER: got %s without a server identifier", selecting)
	}
	granted := next(dhcpv4.MessageTypeAck)
	got, _ := netip.AddrFromSlice(granted.Message.YourIPAddr.To4())
	if got.Less(first) || last.Less(got) {
		t.Errorf("got %s, want an address from %s to %s", granted, first, last)
	}
	if !granted.Message.GatewayIPAddr.Equal(lab.PodIP.AsSlice()) {
		t.Errorf("%s: it did not come through the relay", granted)
	}
}
