package machine_test

import (
	"net/netip"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/observe"
)

// TestFirmwareIPv6 boots machines that have IPv6 alone, with Kea behind the relay, until Smee's iPXE is told its script:
// OVMF by HTTP boot, and iPXE of QEMU's card by TFTP. OVMF's PXE and the rest of the way are the journey's.
func TestFirmwareIPv6(t *testing.T) {
	if missing := machine.Missing(); len(missing) > 0 {
		t.Skip("needs the Debian packages " + strings.Join(missing, ", "))
	}
	if testing.Short() {
		t.Skip("-short: it boots machines")
	}
	if _, err := exec.LookPath("kea-dhcp6"); err != nil {
		t.Skipf("needs Debian's package kea-dhcp6-server: %v", err)
	}
	t.Parallel() // labs do not see each other
	byHTTP, ipxe := uefi, bios
	byHTTP.HTTPBoot = true
	tests := []struct {
		machine lab.Machine
		class   string // as the firmware calls itself
		url     string
		file    observe.Kind // how it is loaded
	}{
		{byHTTP, "HTTPClient:", "http://[2001:db8:1::2]:7171/ipxe/ipxe.efi", observe.HTTP},
		{ipxe, "PXEClient:", "tftp://[2001:db8:1::2]/undionly.kpxe", observe.TFTP},
	}
	options := lab.Options{IPv6: true, Without: []string{lab.Hegel, lab.DHCP6}}
	events := map[string]chan observe.Event{}
	for i := range tests {
		m := &tests[i].machine
		m.NoIPv4 = true
		addr := lab.LAN6.Masked().Addr().As16()
		addr[14], addr[15] = 2, m.MAC[5]<<4
		m.IP6 = netip.AddrFrom16(addr)
		options.Machines = append(options.Machines, *m)
		events[m.MAC.String()] = make(chan observe.Event, 1024)
	}
	l := lab.ForTest(t, options)
	if _, err := l.StartKea(t.Context()); err != nil {
		t.Fatal(err)
	}
	sniffer, err := observe.Watch(l, filepath.Join(l.RunDir(), "boot.pcapng"), func(e observe.Event) {
		select {
		case events[e.Machine] <- e:
		default: // not a machine's, or nobody waits any more
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("firmware", func(t *testing.T) { // waits for its parallel tests, before the lab goes
		for _, test := range tests {
			t.Run(test.machine.Name, func(t *testing.T) {
				t.Parallel()
				m := test.machine
				answer := func(e observe.Event, kind, file string) bool {
					given, rest, _ := strings.Cut(e.Detail, ", ")
					addr, err := netip.ParseAddr(given)
					return err == nil && m.Range6().Contains(addr) && e.Kind == observe.DHCP && e.Name == kind &&
						rest == "to its link-local address, boot file "+file
				}
				script := "http://[2001:db8:1::2]:7171/" + m.MAC.String() + "/auto.ipxe"
				follow(t, l, m, sniffer, events[m.MAC.String()], []expected{
					{what: "a SOLICIT", match: func(e observe.Event) bool {
						return e.Name == "SOLICIT" && strings.HasPrefix(e.Detail, test.class)
					}},
					{what: "Kea's ADVERTISE", match: func(e observe.Event) bool { return answer(e, "ADVERTISE", test.url) }},
					{what: "the REPLY", match: func(e observe.Event) bool { return answer(e, "REPLY", test.url) }},
					{what: "the boot file", match: func(e observe.Event) bool {
						return e.Kind == test.file && e.Bytes > 10_000 && path.Base(e.Name) == path.Base(test.url) &&
							e.Server.Addr() == lab.ServiceIP6
					}},
					{what: "the REPLY to the boot file", match: func(e observe.Event) bool { return answer(e, "REPLY", script) }},
				}, nil)
			})
		}
	})
	if err := sniffer.Close(); err != nil {
		t.Error(err)
	}
}
