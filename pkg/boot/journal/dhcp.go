package journal

import (
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// dhcpRequest records a message of a machine.
func (j *Journal) dhcpRequest(m *machine, e *boot.Event) {
	r := roleOf(e)
	if e.Outcome == boot.Dropped && string(e.Text(boot.Reason)) == boot.ReasonHeardByListener {
		return // Another socket of the relay had it as well.
	}
	j.describe(m, e)
	if r == request && renews(e) || r == release || r == decline || r == otherRole {
		// A system that runs renews its lease, or gives it up. That is no part of a boot.
		b := m.newest()
		switch {
		case r == release:
			j.release(m, boot.Addr(e.Client))
		case r == decline && b != nil && !b.state.over():
			b.facts.decline(e)
			b.heardAt(e.At)
			if i := b.enter(b.facts.stage, e.At); e.Outcome != boot.Dropped {
				b.steps[i].result = Failed
				j.add(b, i, message{kind: e.TypeName(), text: requestText(e), result: "declined", begin: e.At, end: e.At})
			}
		}
		return
	}
	if m.isFirmwareIPv6(e) {
		m.firmwareXID = e.XID
		return
	}
	b, s := j.bootOf(m, e, r)
	i := b.enter(s, e.At)
	b.heardAt(e.At)
	j.add(b, i, message{
		kind: e.TypeName(), text: requestText(e), result: resultOf(e), ok: e.Outcome != boot.Dropped,
		begin: e.At, end: e.At,
	})
	if r == inform {
		return
	}
	if r == discover && e.Outcome != boot.Dropped && b.facts.ask(e.V6).acked != 0 {
		b.steps[i].result = Going // It had an address, and asks for one anew: the step is not done after all.
	}
	b.facts.request(e, r, j.scene.serves)
	if r == request && e.Outcome != boot.Dropped {
		j.bind(m, boot.Addr(e.Requested), e.At, noLease)
	}
}

// besideFirmware is how long after a DHCPv6 message of firmware its IPv6 layer may ask: a system that takes the
// firmware's place has to be loaded first.
const besideFirmware = 5 * time.Second

// isFirmwareIPv6 tells whether a DHCPv6 message is one of the IPv6 layer of UEFI's firmware, which gets an address of
// its own besides PXE and HTTP boot, before them or meanwhile. That is no step of a boot: nothing is loaded by it. It
// says nothing of the machine's architecture. Its client identifier is that of the firmware, the machine's UUID (RFC
// 6355); where the machine has none, it is known by the time. Whoever asks so when a kernel has been loaded is the
// operating system.
func (m *machine) isFirmwareIPv6(e *boot.Event) bool {
	if ipxe, firmware := speaker(e); !e.V6 || ipxe || firmware {
		return false
	}
	b := m.newest()
	switch {
	case b == nil || b.state.over() || b.facts.agent.finished != 0 && b.facts.agent.streams == 0:
		return unique(e.UUID)
	case b.furthest.order() >= Kernel.order():
		return false
	}
	last := b.facts.ask(true).last
	return unique(e.UUID) || b.facts.stage == DHCP && last != 0 && e.At-last < int64(besideFirmware)
}

// renews tells whether a REQUEST is that of a system that has its address already.
func renews(e *boot.Event) bool {
	if e.V6 {
		return e.DHCP == 5 || e.DHCP == 6 // RENEW, REBIND
	}
	return e.Client != [16]byte{} // ciaddr
}

func requestText(e *boot.Event) string {
	return joined(" ",
		addressText("asks for ", e.Requested), addressText("of ", e.Server), addressText("through ", e.Relay))
}

func replyText(e *boot.Event) string {
	file := around("boot file ", text(e, boot.File, maxFile), "")
	return joined(", ", addressText("", e.Given), file, addressText("next server ", e.Next))
}

// describe keeps what a machine says of itself.
func (j *Journal) describe(m *machine, e *boot.Event) {
	ipxe, firmware := speaker(e)
	if e.HasArch {
		m.arch, m.hasArch = e.Arch, true
	}
	if vendor := text(e, boot.VendorClass, maxName); vendor != "" && (ipxe || firmware || m.vendor == "") {
		m.vendor = vendor
	}
	if user := text(e, boot.UserClass, maxName); user != "" {
		m.user = user
	}
	if host := text(e, boot.HostName, maxName); host != "" {
		m.host = host
	}
}

// bootOf finds the boot that a message of a machine belongs to, or begins another, and tells who asks.
func (j *Journal) bootOf(m *machine, e *boot.Event, r role) (*bootRecord, Step) {
	ipxe, firmware := speaker(e)
	signature := string(e.Text(boot.VendorClass)) + "\x00" + string(e.Text(boot.UserClass))
	signature = signature[:min(len(signature), 2*maxName)]
	b := m.newest()
	left := b == nil || b.state.over() || b.expected
	ended := left || e.At-b.lastHeard > waitBootAgain
	switch {
	case firmware:
		m.namesakes.ask(e)
		if ended || b.facts.fromDisk || b.furthest.order() > Loader.order() {
			b = j.newBoot(m, e)
		} else if b.furthest == Loader && r == discover {
			b.again(e.At)
		}
		b.facts.begins(signature, false)
		b.setStage(DHCP, e.MAC)
		return b, DHCP
	case ipxe:
		if ended || b.facts.fromDisk || b.furthest.order() >= Kernel.order() || r == discover && b.beganAgain(signature) {
			b = j.newBoot(m, e)
		}
		s := IPXEDHCP
		if b.furthest == "" && !isTinkerbell(e) || b.furthest == DHCP && b.facts.first == signature {
			s = DHCP // iPXE is the firmware
			m.namesakes.ask(e)
		}
		b.facts.begins(signature, s == IPXEDHCP)
		b.setStage(s, e.MAC)
		return b, s
	default:
		// A system asks more than once; another boot that nothing else was heard of is not worth a record.
		same := b != nil && (b.onlySystem() || b.facts.fromDisk && e.At-b.lastHeard <= waitBootAgain)
		switch {
		case b == nil || b.expected, left && !same:
			b = j.newBoot(m, e)
		case r != discover:
		case b.facts.systemAt == 0:
			b.facts.systemAt, b.facts.system = e.At, text(e, boot.VendorClass, maxName)
		case b.installs(m, e):
			b.othersRun = true
			b = j.newBoot(m, e)
			b.facts.fromDisk = true
		}
		b.setStage(OSDHCP, e.MAC)
		return b, OSDHCP
	}
}

// installs tells whether a system that asks again is what the boot installed: another one than that which ran the
// agent, or one that asks when the agent is gone.
func (b *bootRecord) installs(m *machine, e *boot.Event) bool {
	f := &b.facts
	const beside = 2 * aSecond
	gone := f.agent.finished != 0 && f.agent.streams == 0 && e.At-f.agent.finished > beside
	unseen := m.nat.IsValid() && e.At-f.systemAt > aMinute // what it loads is not known to be its own
	return gone || text(e, boot.VendorClass, maxName) != f.system && (f.agent.worked || f.agent.reported || unseen)
}

// beganAgain tells whether a DISCOVER of iPXE is that of the firmware, after the iPXE that it loaded has asked.
func (b *bootRecord) beganAgain(signature string) bool {
	f := &b.facts
	return f.first == signature && f.ipxe != "" && f.ipxe != signature && b.furthest.order() >= IPXEDHCP.order()
}

// onlySystem tells whether nothing was heard but the system's DHCP.
func (b *bootRecord) onlySystem() bool { return len(b.steps) == 1 && b.steps[0].step == OSDHCP }

// setStage begins another DHCP exchange where another program, or another interface, asks.
func (b *bootRecord) setStage(s Step, mac [6]byte) {
	if b.facts.stage != s || b.mac != mac {
		b.mac = mac
		b.facts.setStage(s)
	}
}

// dhcpReply records a server's message to a machine.
func (j *Journal) dhcpReply(m *machine, e *boot.Event) {
	r := roleOf(e)
	at := e.At
	dropped := e.Outcome == boot.Dropped
	if !dropped {
		j.scene.replied(m, at, boot.Addr(e.Server), boot.Addr(e.Endpoint))
	}
	given := boot.Addr(e.Given)
	b := m.newest()
	if b != nil && r == ack && b.facts.ask(e.V6).confirmsAnother(given, boot.Addr(e.Server)) {
		r = otherRole // Smee confirms a REQUEST for another server's offer as well; the machine does not take it.
	}
	if !dropped && r == ack && given.IsValid() {
		j.bind(m, given, at, max(time.Minute, time.Duration(e.Lease)*time.Second))
	}
	if e.V6 && m.firmwareXID != 0 && e.XID == m.firmwareXID {
		return // The answer to the firmware's IP layer.
	}
	if b == nil || b.expected {
		if r == ack && (e.Client != [16]byte{} || len(e.Text(boot.File)) == 0) {
			return // The answer to a system that renews its lease: many servers repeat its ciaddr (RFC 2131 table 3).
		}
		b = j.newBoot(m, e)
	}
	if b.facts.stage == "" {
		b.setStage(DHCP, e.MAC)
	}
	if b.state.over() && b.facts.ask(e.V6).asked == 0 {
		return // The answer to a system that renews its lease.
	}
	s := b.facts.stage
	i := b.enter(s, at)
	b.heardAt(at)
	from := addrPort(e)
	j.add(b, i, message{
		kind: e.TypeName(), text: replyText(e), result: resultOf(e), ok: !dropped && r != nak, from: from,
		begin: at - int64(max(0, e.Took)), end: at,
	})
	if dropped {
		b.facts.replyDropped(e, r)
		return
	}
	b.facts.reply(e, r)
	if r == offer {
		j.bind(m, given, at, noLease) // Some firmware loads under it without asking for it.
	}
	b.steps[i].from = from
	m.rise(offered)
	if r != ack {
		return
	}
	b.moved = at
	if given.IsValid() {
		b.steps[i].text = given.String()
	}
	b.steps[i].result = OK
	b.facts.fromDisk = b.facts.fromDisk || s == OSDHCP && b.localSystem() && !m.nat.IsValid()
	b.overcome(s, stepEnded)
	m.rise(serviced)
}

// localSystem tells whether a system that has its address did not come from the network.
func (b *bootRecord) localSystem() bool {
	return b.last(Kernel) == nil && b.last(Initramfs) == nil && b.last(Agent) == nil
}

// rise raises a machine's rank.
func (m *machine) rise(to rank) { m.rank = max(m.rank, to) }
