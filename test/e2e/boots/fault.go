// Package boots stages the faults of a network boot in a lab, one machine each, and asks the pod what is the matter
// with the machine: by its page, its API and its command. That the machine really fails that way is known from the
// wire and from the machine itself, not from the pod.
package boots

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/observe"
)

// Phases of a site: what is broken for all machines from then on.
const (
	whole        = iota // nothing is: the faults are the machines' own
	withoutHegel        // Hegel is gone
	otherLoaders        // another server has taken the place of Smee's TFTP server
	withoutSmee         // Smee is gone
	phases              // their number
)

// Fault is a fault and the machine that meets it.
type Fault struct {
	// Name as people call it.
	Name string
	// Cause is the name that the pod has to say, and Names what its sentence has to name.
	Cause, Names string
	// Firmware is what a virtual machine shows it with: lab.BIOS or lab.UEFI.
	Firmware lab.Firmware

	phase   int
	inGo    bool               // the machine in Go shows it always
	unknown bool               // the services do not know the machine
	change  func(*lab.Machine) // what the services know of it
	// client makes the Go machine do what firmware does by itself.
	client func(*goMachine)
	// shown tells whether the wire and the machine have shown the fault.
	shown func(*seen) bool
}

// Files that machines are sent for and that are not there, or not whole.
const (
	missingScript = "/scripts/ubuntu.ipxe"
	missingKernel = "/vmlinuz-removed"
	tornKernel    = "/vmlinuz-torn"
)

// Faults are all that are staged, in the order of a boot.
func Faults() []Fault {
	return []Fault{
		{
			Name: "unknown MAC", Cause: "no-hardware", unknown: true,
			shown: func(s *seen) bool { return s.count("DISCOVER") > 1 && s.count("OFFER") == 0 },
		},
		{
			Name: "allowPXE false", Cause: "netboot-not-allowed", inGo: true,
			change: func(m *lab.Machine) { m.NoPXE = true },
			// An installed machine asks once, by PXE and by HTTP, and boots its disk. So does OVMF, which has none here.
			client: func(c *goMachine) { c.AsksAgain = true },
			shown:  func(s *seen) bool { return s.dhcp("OFFER", "boot file /netboot-not-allowed") },
		},
		{
			Name: "second DHCP server", Cause: "other-dhcp-server", Names: rogueIP.String(),
			client: func(c *goMachine) { c.Server = rogueIP },
			shown:  func(s *seen) bool { return s.dhcp("ACK", " from "+rogueIP.String()+",") },
		},
		{
			Name: "script is a 404", Cause: "not-found", Names: missingScript,
			change: func(m *lab.Machine) { m.ScriptURL = url(smeeHTTPPort, missingScript) },
			shown:  func(s *seen) bool { return s.trouble("HTTP status 404 for " + missingScript) },
		},
		{
			Name: "kernel gone", Cause: "not-found", Names: missingKernel, Firmware: lab.UEFI,
			change: func(m *lab.Machine) { m.Script = script(url(filesPort, missingKernel)) },
			shown:  func(s *seen) bool { return s.trouble("HTTP status 404 for " + missingKernel) },
		},
		{
			Name: "kernel torn in the middle", Cause: "file-torn", Names: tornKernel,
			change: func(m *lab.Machine) { m.Script = script(url(mirrorPort, tornKernel)) },
			shown:  func(s *seen) bool { return s.trouble("HTTP answer for " + tornKernel + " ends after ") },
		},
		{
			Name: "agent refused", Cause: "agent-refused",
			shown: func(s *seen) bool { return s.stream && s.refused },
		},
		{
			Name: "Hegel gone", Cause: "no-hegel", Names: lab.HegelIP.String(), phase: withoutHegel, inGo: true,
			shown: func(s *seen) bool { return s.trouble("HTTP status 50") && s.asked("/2009-04-04/") },
		},
		{
			Name: "loader file missing", Cause: "not-found", Names: "undionly.kpxe", phase: otherLoaders,
			shown: func(s *seen) bool { return s.trouble("TFTP error 1 for ") },
		},
		{
			Name: "wrong architecture", Cause: "loader-did-not-start", Names: "ipxe.efi",
			Firmware: lab.UEFI, phase: otherLoaders,
			client: func(c *goMachine) { c.BadLoader = true },
			shown:  (*seen).loaderFailed,
		},
		{
			Name: "Smee gone", Cause: "server-silent", Names: lab.SmeeIP.String(), phase: withoutSmee, Firmware: lab.UEFI,
			shown: func(s *seen) bool { return s.count("DISCOVER") > 1 && s.count("OFFER") == 0 },
		},
	}
}

// ID is the fault's name as a machine's name.
func (f Fault) ID() string { return strings.ReplaceAll(strings.ToLower(f.Name), " ", "-") }

// machineOf makes the machine of a fault by its place among all.
func machineOf(f Fault, place int) lab.Machine {
	m := lab.Machine{
		Name: f.ID(), MAC: net.HardwareAddr{0x52, 0x54, 0x00, 0x5e, 0x01, byte(place + 1)},
		IP: netip.AddrFrom4([4]byte{192, 0, 2, byte(101 + place)}), Firmware: f.Firmware,
	}
	if f.change != nil {
		f.change(&m)
	}
	return m
}

// neighbour is a machine that is switched on when Smee is gone, too.
var neighbour = lab.Machine{Name: "neighbour", MAC: net.HardwareAddr{0x52, 0x54, 0x00, 0x5e, 0x01, 0xff}}

// script boots a kernel as a site's own script does, without a second attempt.
func script(kernel string) string {
	return "#!ipxe\nkernel " + kernel + " console=ttyS0\ninitrd " + url(filesPort, "/initramfs-x86_64") + "\nboot\n"
}

func url(port uint16, path string) string {
	return fmt.Sprintf("http://%s%s", netip.AddrPortFrom(lab.ServiceIP, port), path)
}

// seen is what the wire and a machine have shown of a boot.
type seen struct {
	events  []observe.Event
	stream  bool // a connection to Tink's port has ended
	refused bool // the stand-in of Tink logged that it refused the machine
}

func (s *seen) count(message string) (n int) {
	for _, e := range s.events {
		if e.Kind == observe.DHCP && e.Name == message {
			n++
		}
	}
	return n
}

func (s *seen) dhcp(message, detail string) bool {
	return slices.ContainsFunc(s.events, func(e observe.Event) bool {
		return e.Kind == observe.DHCP && e.Name == message && strings.Contains(e.Detail, detail)
	})
}

func (s *seen) trouble(detail string) bool {
	return slices.ContainsFunc(s.events, func(e observe.Event) bool {
		return e.Kind == observe.Trouble && strings.HasPrefix(e.Detail, detail)
	})
}

// asked tells whether a document was asked for and answered, well or not.
func (s *seen) asked(path string) bool {
	return slices.ContainsFunc(s.events, func(e observe.Event) bool { return strings.HasPrefix(e.Name, path) })
}

// loaderFailed tells whether firmware has its boot file whole, and has asked for an address as firmware since, or for
// nothing: it tries IPv6 for more than a minute first.
func (s *seen) loaderFailed() bool {
	const quiet = 30 * time.Second
	loaded := slices.IndexFunc(s.events, func(e observe.Event) bool { return e.Kind == observe.TFTP && e.Bytes > 0 })
	if loaded < 0 {
		return false
	}
	since := s.events[loaded+1:]
	return len(since) == 0 && time.Since(s.events[loaded].At) > quiet ||
		slices.ContainsFunc(since, func(e observe.Event) bool {
			return e.Kind == observe.DHCP && e.Name == "DISCOVER" && e.UserClass == "" && e.VendorClass != ""
		})
}

// WithFirmware tells which faults "make boots" shows with real firmware. Hegel is asked by the installer alone, which
// is the same code in the Go machine.
func WithFirmware(f Fault) bool { return !f.inGo }
