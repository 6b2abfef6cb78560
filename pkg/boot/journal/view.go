package journal

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

func moment(at int64) time.Time { return time.Unix(0, at).UTC() }

// view is a machine without boots and lines.
func (j *Journal) view(m *machine) MachineView {
	v := MachineView{
		ID: m.id, Name: m.host, Arch: m.archName(), VendorClass: m.vendor, UserClass: m.user, Pod: j.options.Pod,
	}
	if n := len(m.addresses); n > 0 {
		v.Address = m.addresses[n-1]
	}
	if m.uuid != ([16]byte{}) {
		v.UUID = uuidString(m.uuid)
	}
	if len(m.macs) == 0 {
		return v
	}
	v.MAC = m.id // which is that of the first
	for _, mac := range m.macs[1:] {
		v.OtherMACs = append(v.OtherMACs, macString(mac))
	}
	if j.options.Hardware != nil {
		for _, mac := range m.macs {
			if h, ok := j.options.Hardware(mac); ok && h.Known {
				v.Hardware = h.Name
				v.Name = h.Name[strings.LastIndexByte(h.Name, '/')+1:]
				break
			}
		}
	}
	return v
}

// uuidString is a UUID as firmware, Smee and dmidecode show it: option 97 has the first three parts with their lowest
// byte first (SMBIOS 2.6, RFC 4578 section 2.3).
func uuidString(u [16]byte) string {
	slices.Reverse(u[0:4])
	slices.Reverse(u[4:6])
	slices.Reverse(u[6:8])
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// peers are addresses as text. Most machines are served by the same few.
type peers map[netip.AddrPort]string

func (p peers) text(a netip.AddrPort) string {
	if !a.IsValid() {
		return ""
	}
	text, known := p[a]
	if !known {
		text = peer(a)
		if p != nil {
			p[a] = text
		}
	}
	return text
}

// view is a boot, with answers if they are wanted.
func (b *bootRecord) view(answers bool) BootView { return b.viewBy(answers, nil) }

func (b *bootRecord) viewBy(answers bool, known peers) BootView {
	v := BootView{
		ID: b.id, Begin: moment(b.begin), End: moment(b.lastHeard), State: b.state, At: b.furthest, Next: b.next(),
		Steps: make([]StepView, len(b.steps)),
	}
	if b.cause != nil {
		c := *b.cause
		c.Others = slices.Clone(c.Others)
		v.Cause = &c
	}
	for i := range b.steps {
		v.Steps[i] = b.steps[i].view(known)
		if answers {
			v.Steps[i].Answers = b.answersOf(i)
		}
	}
	return v
}

func (s *step) view(known peers) StepView {
	return StepView{
		Step: s.step, Result: s.result, Begin: moment(s.begin), End: moment(s.end), Bytes: s.bytes, Text: s.text,
		From: known.text(s.from),
	}
}

func (b *bootRecord) answersOf(i int) []Answer {
	var views []Answer
	for k := range b.messages {
		if a := &b.messages[k]; int(a.step) == i {
			views = append(views, Answer{
				Begin: moment(a.begin), End: moment(a.end), Kind: a.kind, Text: a.text, Result: a.result, OK: a.ok,
				Bytes: a.bytes, Expected: a.expected, From: a.from, Count: int(a.count),
			})
		}
	}
	return views
}

func (l *line) view() LineView {
	return LineView{
		At: moment(l.at), Facility: facility(l.priority), Severity: severity(l.priority), Tag: l.tag, Text: l.text,
	}
}

// next is the step that likely comes next; empty if there is none.
func (b *bootRecord) next() Step {
	if b.state.done() || b.facts.fromDisk {
		return ""
	}
	if a := b.facts.leased(); b.furthest == DHCP && a != nil && strings.HasSuffix(a.file, ".ipxe") {
		return Script
	}
	if b.furthest == Kernel && (b.last(Initramfs) != nil || strings.HasSuffix(b.last(Kernel).text, ".iso")) {
		return OSDHCP
	}
	return nexts[b.furthest]
}

var nexts = map[Step]Step{
	DHCP: Loader, Loader: IPXEDHCP, IPXEDHCP: Script, Script: Kernel, Kernel: Initramfs, Initramfs: OSDHCP,
	OSDHCP: Syslog, Syslog: Metadata, Metadata: Agent, Agent: Files,
}
