package clients_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/test/e2e/clients"
	"github.com/tinkerbell/stack/test/e2e/lab"
)

// TestProxyModeSystems has clients of operating systems, which are no PXE clients, live beside Smee in proxy mode:
// their lease is the site's own server's alone, and the relay brings them no word of Smee's.
func TestProxyModeSystems(t *testing.T) {
	t.Parallel() // labs do not see each other
	requireDnsmasq(t)
	all := machines(len(clients.All))
	l := lab.ForTest(t, lab.Options{
		Machines: all,
		Without:  []string{lab.Hegel, lab.StackProxy},
		Args:     map[string][]string{lab.Smee: {"-dhcp-mode", "proxy"}},
	})
	site := netip.MustParseAddr("192.0.2.3")
	first, last := netip.MustParseAddr("192.0.2.150"), netip.MustParseAddr("192.0.2.160")
	if _, err := l.AddDHCPServer("site-dhcp", site, first, last); err != nil {
		t.Fatal(err)
	}
	t.Run("clients", func(t *testing.T) { // waits for its parallel tests, before the lab goes
		for i, client := range clients.All {
			t.Run(client.Name, func(t *testing.T) {
				t.Parallel()
				if err := client.Missing(); err != nil {
					t.Skip(err)
				}
				testSite(t, l, client, all[i], site)
			})
		}
	})
}

func testSite(t *testing.T, l *lab.Lab, client clients.Client, m lab.Machine, site netip.Addr) {
	host, err := l.AddHost(m.Name, m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	wire, running := follow(t, l, client, host)
	var granted netip.Addr
	next := func(timeout time.Duration, kind dhcpv4.MessageType) {
		t.Helper()
		seen, err := wire.Next(t.Context(), timeout, func(s clients.Seen) bool {
			if s.Src.Addr() == lab.ServiceIP {
				t.Errorf("Smee speaks: %s", s)
			}
			return clients.Of(kind, m.MAC)(s)
		})
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if !seen.Out && seen.Src.Addr() != site {
			t.Errorf("got %s, want it from %s", seen, site)
		}
		granted, _ = netip.AddrFromSlice(seen.Message.YourIPAddr.To4())
	}
	for _, kind := range []dhcpv4.MessageType{
		dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeAck,
	} {
		next(10*time.Second, kind)
	}
	if !client.Configures {
		if err := l.Configure(host, netip.PrefixFrom(granted, lab.LAN.Bits()), lab.GatewayIP); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Second) // the client binds
	if running.RenewsOnDemand() {
		if err := running.Renew(); err != nil {
			t.Fatal(err)
		}
		next(10*time.Second, dhcpv4.MessageTypeRequest)
		next(10*time.Second, dhcpv4.MessageTypeAck)
	}
	// What it sends by broadcast did reach Smee: through our relay, and to no effect.
	late, err := wire.Next(t.Context(), time.Second, func(s clients.Seen) bool { return s.Src.Addr() == lab.ServiceIP })
	if err == nil {
		t.Errorf("Smee speaks: %s", late)
	}
}
