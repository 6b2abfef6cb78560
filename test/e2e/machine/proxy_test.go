package machine_test

import (
	"context"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/observe"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// TestProxyMode switches firmware on where the site's own DHCP server gives addresses and no boot options, and Smee
// says by proxyDHCP what to boot, through our relay. Smee has no port 4011: the boot file must come out of its offer.
func TestProxyMode(t *testing.T) {
	if missing := machine.Missing(); len(missing) > 0 {
		t.Skip("needs the Debian packages " + strings.Join(missing, ", "))
	}
	if _, err := exec.LookPath("dnsmasq"); err != nil {
		t.Skipf("needs Debian's package dnsmasq-base: %v", err)
	}
	if testing.Short() {
		t.Skip("-short: it boots machines")
	}
	tests := []struct {
		machine  lab.Machine
		bootFile string // as Smee offers it to the firmware
	}{
		// QEMU's ROM is an iPXE of its own, which is told to load Smee's.
		{lab.Machine{Name: "bios", Firmware: lab.BIOS}, "tftp://192.0.2.2:69/52:54:00:00:03:01/undionly.kpxe"},
		{lab.Machine{Name: "uefi", Firmware: lab.UEFI}, "ipxe.efi"},
	}
	machines := make([]lab.Machine, len(tests))
	events := map[string]chan observe.Event{}
	for i := range tests {
		m := &tests[i].machine
		m.MAC = net.HardwareAddr{0x52, 0x54, 0, 0, 3, byte(i + 1)}
		m.IP = netip.AddrFrom4([4]byte{192, 0, 2, byte(101 + i)}) // for Smee's file; nobody is given it
		machines[i] = *m
		events[m.MAC.String()] = make(chan observe.Event, 1024)
	}
	l := lab.ForTest(t, lab.Options{
		Machines: machines,
		Without:  []string{lab.Hegel},
		Args:     map[string][]string{lab.Smee: {"-dhcp-mode", "proxy"}},
	})
	site := netip.MustParseAddr("192.0.2.3")
	first, last := netip.MustParseAddr("192.0.2.150"), netip.MustParseAddr("192.0.2.160")
	if _, err := l.AddDHCPServer("site-dhcp", site, first, last); err != nil {
		t.Fatal(err)
	}
	capture := filepath.Join(l.RunDir(), "proxy.pcapng")
	sniffer, err := observe.Watch(l, capture, func(e observe.Event) {
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
				testProxyMode(t, l, test.machine, test.bootFile, site, events[test.machine.MAC.String()])
			})
		}
	})
	if err := sniffer.Close(); err != nil {
		t.Fatal(err)
	}
	checkPorts(t, capture)
}

// checkPorts wants DHCP in a capture, and none on port 4011, where a PXE client asks boot servers: Smee
// tells it not to (PXE 2.1: option 43, sub-option 6, bit 3).
func checkPorts(t *testing.T, capture string) {
	t.Helper()
	file, err := os.Open(capture)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	frames, err := observe.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	count := map[uint16]int{}
	for _, frame := range frames {
		// Frames are cut, and then do not parse.
		whole := slices.Concat(frame.Frame, make([]byte, max(0, frame.Length-len(frame.Frame))))
		if p, ok := observe.ParsePacket(whole); ok {
			count[p.To.Port()]++
		}
	}
	if count[67] == 0 || count[4011] != 0 {
		t.Errorf("got %d packets to port 67 and %d to port 4011, want some and none", count[67], count[4011])
	}
}

func testProxyMode(
	t *testing.T, l *lab.Lab, m lab.Machine, bootFile string, site netip.Addr, events <-chan observe.Event,
) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // an emulator on a busy machine
	defer cancel()
	proc, err := machine.Boot(l, m, func(installer.Report) {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Kill(proc.Name()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			said, err := os.ReadFile(machine.FirmwareLog(l, m.Name))
			t.Logf("the firmware says: %s %v", said, err)
		}
	}()
	fromSmee := "0.0.0.0 from " + lab.ServiceIP.String() + ", "
	fromSite := " from " + site.String() + ", "
	steps := []struct {
		what  string
		match func(observe.Event) bool
	}{
		{"a DISCOVER", func(e observe.Event) bool { return e.Name == "DISCOVER" }},
		// Both answer at once; in which order is theirs.
		{"Smee's OFFER of " + bootFile, func(e observe.Event) bool {
			return e.Name == "OFFER" && strings.HasPrefix(e.Detail, fromSmee) &&
				strings.HasSuffix(e.Detail, ", boot file "+bootFile)
		}},
		{"the site's ACK", func(e observe.Event) bool {
			return e.Name == "ACK" && strings.HasPrefix(e.Detail, "192.0.2.1") && strings.Contains(e.Detail, fromSite)
		}},
		{"the boot file by TFTP", func(e observe.Event) bool {
			return e.Kind == observe.TFTP && e.Bytes > 0 && strings.HasSuffix(bootFile, filepath.Base(e.Name))
		}},
		{"Smee's OFFER to the boot file", func(e observe.Event) bool {
			return e.Name == "OFFER" && strings.HasPrefix(e.Detail, fromSmee) && strings.Contains(e.Detail, "/auto.ipxe")
		}},
		{"the script by HTTP", func(e observe.Event) bool {
			return e.Kind == observe.HTTP && strings.HasSuffix(e.Name, "/auto.ipxe") && e.Bytes > 0
		}},
	}
	started := time.Now()
	var seen []string
	for _, step := range steps {
		for found := false; !found; {
			select {
			case e := <-events:
				seen = append(seen, e.Kind.String()+" "+e.Name+" "+e.Detail)
				if found = step.match(e); found {
					t.Logf("%6.2f s %s: %s %s", time.Since(started).Seconds(), step.what, e.Name, e.Detail)
				}
			case <-proc.Done():
				t.Fatalf("%s: %v; seen: %s", step.what, machine.ErrDied, strings.Join(seen, "; "))
			case <-ctx.Done():
				t.Fatalf("%s: not within %s; seen: %s", step.what, time.Since(started), strings.Join(seen, "; "))
			}
		}
	}
}
