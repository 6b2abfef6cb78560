package observe

import (
	"path"
	"slices"
	"strings"
	"time"
)

// The steps of a boot as the wire shows them, with the names that the page of boots has for them. This is told from
// packets on the switch, and by no code of the programs: it is what their view is compared with.
const (
	StepDHCP      = "dhcp"
	StepLoader    = "loader"
	StepIPXEDHCP  = "ipxe-dhcp"
	StepScript    = "script"
	StepKernel    = "kernel"
	StepInitramfs = "initramfs"
	StepOSDHCP    = "os-dhcp"
	StepSyslog    = "syslog"
	StepMetadata  = "metadata"
	StepAgent     = "agent"
	StepFiles     = "files"
)

// Step is a part of a machine's boot: from the first sign of it to the last.
type Step struct {
	Name       string
	Begin, End time.Time
	Failed     bool // its last answer said no, or was cut
}

// Boot is what machines did since they were switched on, by events of a [Tracker]. The zero Boot is ready.
type Boot struct {
	// Only6 leaves DHCPv4 out: iPXE tries it in a site of IPv6, and nothing relays it there.
	Only6    bool
	machines map[string]*progress
}

// progress is how far a machine is.
type progress struct {
	steps []Step
	asked string // the step that its last DHCP message belongs to
}

// Add takes an event.
func (b *Boot) Add(e Event) {
	if b.machines == nil {
		b.machines = map[string]*progress{}
	}
	p := b.machines[e.Machine]
	if p == nil {
		p = &progress{}
		b.machines[e.Machine] = p
	}
	switch e.Kind {
	case DHCP:
		if e.IPv6 || !b.Only6 {
			p.dhcp(e)
		}
	case TFTP:
		p.add(StepLoader, e, false)
	case HTTP:
		p.add(p.document(e.Name), e, false)
	case Trouble:
		switch {
		case e.Name == "": // a DHCP NAK
			p.add(p.asked, e, true)
		case strings.HasPrefix(e.Name, "/"):
			p.add(p.document(e.Name), e, true)
		default:
			p.add(StepLoader, e, true)
		}
	case Syslog:
		if !strings.Contains(e.Detail, " ipxe: ") { // iPXE logs, too: the step is the system's
			p.add(StepSyslog, e, false)
		}
	case Stream:
		p.add(StepAgent, e, false)
	}
}

// Steps are those of a machine, in the order in which they began.
func (b *Boot) Steps(machine string) []Step {
	p := b.machines[machine]
	if p == nil {
		return nil
	}
	steps := slices.Clone(p.steps)
	slices.SortStableFunc(steps, func(a, b Step) int { return a.Begin.Compare(b.Begin) })
	return steps
}

// dhcp takes a message. The firmware's own iPXE says so from the start; the loader's comes after a loader.
func (p *progress) dhcp(e Event) {
	switch e.Name {
	case "DISCOVER", "REQUEST", "DECLINE", "RELEASE", "INFORM": // the machine's own
		if e.IPv6 {
			break // it follows a SOLICIT
		}
		firmware := strings.HasPrefix(e.VendorClass, "PXEClient") || strings.HasPrefix(e.VendorClass, "HTTPClient")
		switch {
		case !firmware:
			p.asked = StepOSDHCP
		case e.UserClass == "Tinkerbell", e.UserClass == "iPXE" && p.has(StepLoader):
			p.asked = StepIPXEDHCP
		default:
			p.asked = StepDHCP
		}
	case "SOLICIT", "RENEW", "REBIND", "CONFIRM", "INFORMATION-REQUEST":
		// Of DHCPv6. The IP stack of UEFI asks, too, and like a system it says nothing of itself: what it asks first is
		// no part of a boot yet.
		switch {
		case e.UserClass == "Tinkerbell":
			p.asked = StepIPXEDHCP
		case e.VendorClass == "" && p.has(StepKernel):
			p.asked = StepOSDHCP
		case p.asked == "" && e.VendorClass != "":
			p.asked = StepDHCP
		}
	}
	if p.asked == "" {
		return
	}
	p.add(p.asked, e, e.Name == "NAK")
}

func (p *progress) has(step string) bool {
	return slices.ContainsFunc(p.steps, func(s Step) bool { return s.Name == step })
}

// document says which step a document is of.
func (p *progress) document(url string) string {
	url, _, _ = strings.Cut(url, "?")
	name := path.Base(url)
	switch {
	case strings.HasPrefix(url, "/2009-04-04/"), url == "/metadata":
		return StepMetadata
	case strings.HasSuffix(name, ".ipxe"):
		return StepScript
	case strings.HasSuffix(name, ".efi"), strings.HasSuffix(name, ".kpxe"):
		return StepLoader
	case strings.HasPrefix(name, "vmlinuz"):
		return StepKernel
	case strings.HasPrefix(name, "initramfs"):
		return StepInitramfs
	}
	return StepFiles
}

// add makes a step longer, or begins it.
func (p *progress) add(name string, e Event, failed bool) {
	if name == "" {
		return
	}
	begin := e.At.Add(-e.Took)
	for i := range p.steps {
		if s := &p.steps[i]; s.Name == name {
			if begin.Before(s.Begin) {
				s.Begin = begin
			}
			if !e.At.Before(s.End) {
				s.End, s.Failed = e.At, failed
			}
			return
		}
	}
	p.steps = append(p.steps, Step{Name: name, Begin: begin, End: e.At, Failed: failed})
}
