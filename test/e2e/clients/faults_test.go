package clients_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/clients"
	"github.com/tinkerbell/stack/test/e2e/lab"
)

// TestFaults breaks one thing after the other and wants a real client to be served again, without anybody's help
// but what a cluster does by itself: a container that ended is started again.
func TestFaults(t *testing.T) {
	t.Parallel() // labs do not see each other
	if err := clients.Udhcpc.Missing(); err != nil {
		t.Skip(err)
	}
	m := machines(1)[0]
	l := lab.ForTest(t, lab.Options{Machines: []lab.Machine{m}, Without: []string{lab.Hegel, lab.StackProxy}})
	host, err := l.AddHost(m.Name, m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	do := func(t *testing.T, steps ...error) {
		t.Helper()
		for _, err := range steps {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	served := func(t *testing.T, within time.Duration) {
		t.Helper()
		started := time.Now()
		for {
			err := clients.Obtain(t.Context(), l, host)
			if err == nil {
				t.Logf("served after %s", time.Since(started).Round(time.Millisecond))
				return
			}
			if time.Since(started) > within {
				t.Fatalf("not served within %s: %v", within, err)
			}
		}
	}
	unserved := func(t *testing.T) {
		t.Helper()
		if err := clients.Obtain(t.Context(), l, host); err == nil {
			t.Error("the client was served: the fault is none")
		}
	}
	served(t, 0)

	t.Run("Smee gone and back", func(t *testing.T) {
		do(t, l.Kill(lab.Smee))
		unserved(t)
		do(t, l.Restart(t.Context(), lab.Smee))
		served(t, 5*time.Second)
	})
	t.Run("Smee replaced", func(t *testing.T) {
		do(t, l.Replace(t.Context(), lab.Smee, netip.MustParseAddr("10.244.0.77")))
		served(t, 30*time.Second)
	})
	t.Run("DNS gone", func(t *testing.T) {
		do(t, l.Kill(lab.DNS))
		time.Sleep(12 * time.Second) // longer than answers live and than the relay's interval
		served(t, 5*time.Second)
		do(t, l.Restart(t.Context(), lab.DNS))
	})
	t.Run("name gone", func(t *testing.T) {
		do(t, l.SetRecord("smee"))
		time.Sleep(12 * time.Second)
		served(t, 5*time.Second)
		do(t, l.SetRecord("smee", netip.MustParseAddr("10.244.0.77")))
	})
	t.Run("uplink down and up", func(t *testing.T) {
		do(t, l.SetLink(lab.RoleNode, "prov0", false))
		unserved(t)
		do(t, l.SetLink(lab.RoleNode, "prov0", true))
		served(t, 10*time.Second)
	})
	t.Run("relay killed", func(t *testing.T) {
		do(t, l.Kill(lab.DHCPRelay))
		unserved(t)
		do(t, l.Restart(t.Context(), lab.DHCPRelay))
		served(t, 5*time.Second)
	})
	t.Run("listener deleted", func(t *testing.T) {
		do(t, l.Do(lab.RolePod, func() error {
			link, err := netlink.LinkByName("macvlan0")
			if err != nil {
				return err
			}
			return netlink.LinkDel(link)
		}))
		unserved(t)
		do(t, l.Restart(t.Context(), lab.BroadcastInit))
		served(t, 10*time.Second)
	})
	select {
	case err := <-l.Failed():
		t.Error(err)
	default:
	}
}

// TestAmbient runs the pod's programs as another user, with their one capability in the ambient set: what
// Kubernetes cannot give today and a container engine can.
func TestAmbient(t *testing.T) {
	t.Parallel() // labs do not see each other
	if err := clients.Udhcpc.Missing(); err != nil {
		t.Skip(err)
	}
	m := machines(1)[0]
	l := lab.ForTest(t, lab.Options{
		Machines: []lab.Machine{m},
		Without:  []string{lab.Hegel, lab.StackProxy},
		Security: map[string]*lab.Security{
			lab.BroadcastInit: {UID: 65532, Capabilities: []int{unix.CAP_NET_ADMIN}, Ambient: true},
			lab.DHCPRelay:     {UID: 65532, Capabilities: []int{unix.CAP_NET_RAW}, Ambient: true},
		},
	})
	host, err := l.AddHost(m.Name, m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	if err := clients.Obtain(t.Context(), l, host); err != nil {
		t.Error(err)
	}
}

// TestRogueServer has a second server answer on the LAN, as a forgotten router does. The client hears both: the
// relay neither hides its own answer nor carries the other's.
func TestRogueServer(t *testing.T) {
	t.Parallel() // labs do not see each other
	if err := clients.Udhcpc.Missing(); err != nil {
		t.Skip(err)
	}
	requireDnsmasq(t)
	m := machines(1)[0]
	l := lab.ForTest(t, lab.Options{Machines: []lab.Machine{m}, Without: []string{lab.Hegel, lab.StackProxy}})
	rogue := netip.MustParseAddr("192.0.2.66")
	first, last := netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("192.0.2.210")
	if _, err := l.AddDHCPServer("rogue", rogue, first, last); err != nil {
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
	if _, err := clients.Udhcpc.Start(l, host); err != nil {
		t.Fatal(err)
	}
	sources := map[netip.Addr]string{}
	for len(sources) < 2 {
		offer, err := wire.Next(t.Context(), 15*time.Second, clients.Of(dhcpv4.MessageTypeOffer, m.MAC))
		if err != nil {
			t.Fatalf("offers from %v: %v", sources, err)
		}
		sources[offer.Src.Addr()] = offer.Message.YourIPAddr.String()
	}
	if got := sources[lab.ServiceIP]; got != m.IP.String() {
		t.Errorf("Smee offers %q, want %s", got, m.IP)
	}
	if got := sources[rogue]; !strings.HasPrefix(got, "192.0.2.2") {
		t.Errorf("the rogue offers %q, want an address from %s to %s", got, first, last)
	}
}
