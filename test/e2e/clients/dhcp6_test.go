package clients_test

import (
	"net"
	"net/netip"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/tinkerbell/stack/test/e2e/clients"
	"github.com/tinkerbell/stack/test/e2e/lab"
)

// TestLease6 takes every DHCPv6 client through the life of a lease, with Kea and with dnsmasq behind the relay. Both know
// a machine by option 79 (RFC 6939) alone, so that an answer proves that it was there.
func TestLease6(t *testing.T) {
	for _, server := range []string{"kea", lab.DHCP6} {
		t.Run(server, func(t *testing.T) {
			t.Parallel() // labs do not see each other
			all := machines6(len(clients.All6))
			options := lab.Options{IPv6: true, Machines: all, Without: []string{lab.Hegel, lab.StackProxy}}
			if server != lab.DHCP6 {
				options.Without = append(options.Without, lab.DHCP6)
				if _, err := exec.LookPath("kea-dhcp6"); err != nil {
					t.Skipf("needs Debian's package kea-dhcp6-server: %v", err)
				}
			} else {
				requireDnsmasq(t)
			}
			l := lab.ForTest(t, options)
			if server != lab.DHCP6 {
				if _, err := l.StartKea(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for i, client := range clients.All6 {
				t.Run(client.Name, func(t *testing.T) {
					t.Parallel()
					if err := client.Missing(); err != nil {
						t.Skip(err)
					}
					testLease6(t, l, client, all[i], server)
				})
			}
		})
	}
}

func machines6(n int) []lab.Machine {
	all := machines(n)
	for i := range all {
		addr := lab.LAN6.Masked().Addr().As16()
		addr[15] = byte(0x60 + 16*i)
		all[i].IP6 = netip.AddrFrom16(addr)
	}
	return all
}

func testLease6(t *testing.T, l *lab.Lab, client clients.Client, m lab.Machine, server string) {
	host, err := l.AddHost(m.Name, m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	wire, running := follow(t, l, client, host)
	next := func(timeout time.Duration, kind dhcpv6.MessageType) clients.Seen {
		t.Helper()
		seen, err := wire.Next(t.Context(), timeout, clients.Of6(kind))
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		return seen
	}

	next(20*time.Second, dhcpv6.MessageTypeSolicit)
	checkAnswer6(t, m, next(10*time.Second, dhcpv6.MessageTypeAdvertise))
	next(10*time.Second, dhcpv6.MessageTypeRequest)
	checkAnswer6(t, m, next(10*time.Second, dhcpv6.MessageTypeReply))
	if server != "kea" {
		return // dnsmasq's leases are two minutes at least
	}
	// RENEW is a multicast, too: it passes the relay as all messages do (RFC 9915 section 18.2.4).
	next(20*time.Second, dhcpv6.MessageTypeRenew)
	checkAnswer6(t, m, next(5*time.Second, dhcpv6.MessageTypeReply))
	if client.Name == clients.Networkd.Name {
		return // it gives its lease back when it ends, and in no other way
	}
	release(t, l, running, wire, m)
}

// release has a client give its address back, to which the server says REPLY.
func release(t *testing.T, l *lab.Lab, running *clients.Running, wire *clients.Wire, m lab.Machine) {
	t.Helper()
	time.Sleep(time.Second) // the client binds
	var err error
	for range 3 { // dhcpcd loses a signal that comes while it waits for its helper processes
		if err := running.Release(); err != nil {
			t.Fatal(err)
		}
		if _, err = wire.Next(t.Context(), 5*time.Second, clients.Of6(dhcpv6.MessageTypeRelease)); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatalf("release of %s: %v", m.Name, err)
	}
	if _, err := wire.Next(t.Context(), 10*time.Second, clients.Of6(dhcpv6.MessageTypeReply)); err != nil {
		t.Fatalf("release of %s: %v", m.Name, err)
	}
}

// TestRebind6 has a server fall silent while a lease lives: after its RENEW the client sends REBIND, which Kea answers
// when it is back.
func TestRebind6(t *testing.T) {
	t.Parallel() // labs do not see each other
	client := clients.Dhcpcd6
	if err := client.Missing(); err != nil {
		t.Skip(err)
	}
	if _, err := exec.LookPath("kea-dhcp6"); err != nil {
		t.Skipf("needs Debian's package kea-dhcp6-server: %v", err)
	}
	m := machines6(1)[0]
	l := lab.ForTest(t, lab.Options{
		IPv6: true, Machines: []lab.Machine{m}, Without: []string{lab.Hegel, lab.StackProxy, lab.DHCP6},
	})
	kea, err := l.StartKea(t.Context())
	if err != nil {
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
	if _, err := client.Start(l, host); err != nil {
		t.Fatal(err)
	}
	next := func(timeout time.Duration, kind dhcpv6.MessageType) clients.Seen {
		t.Helper()
		seen, err := wire.Next(t.Context(), timeout, clients.Of6(kind))
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		return seen
	}
	next(20*time.Second, dhcpv6.MessageTypeRequest)
	checkAnswer6(t, m, next(10*time.Second, dhcpv6.MessageTypeReply))
	if err := kea.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	next(15*time.Second, dhcpv6.MessageTypeRenew)
	next(15*time.Second, dhcpv6.MessageTypeRebind)
	if err := kea.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	checkAnswer6(t, m, next(15*time.Second, dhcpv6.MessageTypeReply))
}

// checkAnswer6 checks what every answer through the relay has in common: it goes to the machine's link-local address on
// both layers, and names the address that the machine's MAC address stands for.
func checkAnswer6(t *testing.T, m lab.Machine, s clients.Seen) {
	t.Helper()
	if s.EthDst.String() != m.MAC.String() || !s.Dst.Addr().IsLinkLocalUnicast() || s.Src.Port() != dhcpv6.DefaultServerPort {
		t.Errorf("%s: not from a server's port to the machine's link-local address", s)
	}
	ia := s.Message6.Options.OneIANA()
	if ia == nil || ia.Options.OneAddress() == nil {
		t.Fatalf("%s: no address: %s", s, s.Message6.Summary())
	}
	if got := ia.Options.OneAddress().IPv6Addr; !got.Equal(net.IP(m.IP6.AsSlice())) {
		t.Errorf("%s: got %s, want %s", s, got, m.IP6)
	}
}
