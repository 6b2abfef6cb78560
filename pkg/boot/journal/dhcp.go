package journal

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// dhcpRequest records a message of a machine.
func (j *Journal) dhcpRequest(m *machine, e *boot.Event) {
	r, name := roleOf(e)
	if e.Outcome == boot.Dropped && string(e.Text(boot.Reason)) == "heard-by-listener" {
		return // Another socket of the relay had it as well.
	}
	j.describe(m, e)
	if r == request && renews(e) || r == release || r == decline || r == otherRole {
		// A system that runs renews its lease, or gives it up. That is no part of a boot.
		if r == release {
			j.release(m, boot.Addr(e.Client))
		}
		return
	}
	if m.isLayer(e) {
		m.layer = e.XID
		return
	}
	b, s := j.bootOf(m, e, r)
	at := e.At
	i := b.step(s, at)
	b.sign(at)
	result := "sent on"
	if e.Outcome == boot.Dropped {
		result = "dropped: " + text(e, boot.Reason, maxName)
	}
	j.add(b, i, answer{
		kind: name, text: requestText(e), result: result, ok: e.Outcome != boot.Dropped, begin: at, end: at,
	})
	a := b.ask(e.V6)
	if r == inform {
		return
	}
	if a.asked++; a.asked == 1 {
		a.opened = at
	}
	a.last = at
	if to := boot.Addr(e.Endpoint); to.IsValid() {
		a.to = netip.AddrPortFrom(to, e.Port)
	}
	if a.relay = boot.Addr(e.Relay); e.Outcome == boot.Dropped {
		if a.drop = text(e, boot.Reason, maxName); a.drop == "other-host" {
			b.strays++
			b.stray = a.drop
		}
		return
	}
	a.drop = ""
	switch r {
	case discover:
		a.discovers++
		if a.acked != 0 {
			b.steps[i].result = Going
		}
		a.chosen = boot.Addr([16]byte{})
		a.acked = 0
		j.scene.asks(m, at)
	case request:
		a.requests++
		a.offers = 0
		server := boot.Addr(e.Server)
		if server.IsValid() && !slices.Contains(a.servers, server) && !j.scene.serves(server) {
			a.chosen = server
		}
		j.bind(m, boot.Addr(e.Requested), at, 0)
	}
}

// besideFirmware is how long after a DHCPv6 message of firmware its IPv6 layer may ask: a system that takes the
// firmware's place has to be loaded first.
const besideFirmware = 5 * time.Second

// isLayer tells whether a DHCPv6 message is one of the IPv6 layer of UEFI's firmware, which gets an address of its own
// besides PXE and HTTP boot, before them or meanwhile. That is no step of a boot: nothing is loaded by it. It says
// nothing of the machine's architecture. Its client identifier is that of the firmware, the machine's UUID (RFC 6355);
// where the machine has none, it is known by the time. Whoever asks so when a kernel has been loaded is the operating
// system.
func (m *machine) isLayer(e *boot.Event) bool {
	if ipxe, firmware := speaker(e); !e.V6 || ipxe || firmware {
		return false
	}
	b := m.newest()
	switch {
	case b == nil || b.state == Booted || b.state == Silent:
		return unique(e.UUID)
	case b.at.order() >= Kernel.order():
		return false
	}
	last := b.ask(true).last
	return unique(e.UUID) || b.stage == DHCP && last != 0 && e.At-last < int64(besideFirmware)
}

// renews tells whether a REQUEST is that of a system that has its address already.
func renews(e *boot.Event) bool {
	if e.V6 {
		return e.DHCP == 5 || e.DHCP == 6 // RENEW, REBIND
	}
	return e.Client != [16]byte{}
}

func requestText(e *boot.Event) string {
	var parts []string
	if a := boot.Addr(e.Requested); a.IsValid() {
		parts = append(parts, "asks for "+a.String())
	}
	if a := boot.Addr(e.Server); a.IsValid() {
		parts = append(parts, "of "+a.String())
	}
	if a := boot.Addr(e.Relay); a.IsValid() {
		parts = append(parts, "through "+a.String())
	}
	return strings.Join(parts, " ")
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
func (j *Journal) bootOf(m *machine, e *boot.Event, r role) (*record, Step) {
	ipxe, firmware := speaker(e)
	signature := string(e.Text(boot.VendorClass)) + "\x00" + string(e.Text(boot.UserClass))
	signature = signature[:min(len(signature), 2*maxName)]
	b := m.newest()
	left := b == nil || b.state == Booted || b.state == Silent
	over := left || e.At-b.end > int64(j.options.Waits.BootAgain)
	switch {
	case firmware:
		if over || b.local || b.at.order() > Loader.order() {
			b = j.newBoot(m, e)
		} else if b.at == Loader && r == discover {
			b.again()
		}
		b.begins(signature)
		b.setStage(DHCP, e.MAC)
		return b, DHCP
	case ipxe:
		if over || b.local || b.at.order() >= Kernel.order() || r == discover && b.beganAgain(signature) {
			b = j.newBoot(m, e)
		}
		s := IPXEDHCP
		if b.at == "" && !isTinkerbell(e) || b.at == DHCP && b.first == signature {
			s = DHCP // iPXE is the firmware
		}
		b.begins(signature)
		if s == IPXEDHCP {
			b.ipxe = signature
		}
		b.setStage(s, e.MAC)
		return b, s
	default:
		// A system asks more than once; another boot that nothing else was heard of is not worth a record.
		same := b != nil && (b.onlySystem() || b.local && e.At-b.end <= int64(j.options.Waits.BootAgain))
		if left && !same {
			b = j.newBoot(m, e)
		}
		if b.at.order() < Loader.order() {
			b.local = true
		}
		b.setStage(OSDHCP, e.MAC)
		return b, OSDHCP
	}
}

// beganAgain tells whether a DISCOVER of iPXE is that of the firmware, after the iPXE that it loaded has asked.
func (b *record) beganAgain(signature string) bool {
	return b.first == signature && b.ipxe != "" && b.ipxe != signature && b.at.order() >= IPXEDHCP.order()
}

// begins notes how the machine's firmware, or iPXE in its place, speaks.
func (b *record) begins(signature string) {
	b.firmware = true
	if b.first == "" {
		b.first = signature
	}
}

// onlySystem tells whether nothing was heard but the system's DHCP.
func (b *record) onlySystem() bool { return len(b.steps) == 1 && b.steps[0].step == OSDHCP }

// setStage begins another DHCP exchange where another program, or another interface, asks.
func (b *record) setStage(s Step, mac [6]byte) {
	if b.stage == s && b.mac == mac {
		return
	}
	b.stage, b.mac = s, mac
	b.asks = [2]ask{}
	b.strays = 0
	if b.failed.step.order() < s.order() {
		b.failed = failure{}
	}
}

// again begins another attempt of a boot whose loader brought the firmware back.
func (b *record) again() {
	for i := len(b.steps) - 1; i >= b.attempt; i-- {
		if s := &b.steps[i]; s.step == Loader {
			if s.result == OK {
				b.returned = failure{step: Loader, at: b.end, file: s.text, from: s.from, count: b.returned.count + 1}
			}
			break
		}
	}
	b.attempt = len(b.steps)
	b.at = ""
	b.stage = ""
}

// ask is the exchange of a version of DHCP.
func (b *record) ask(v6 bool) *ask {
	if v6 {
		return &b.asks[1]
	}
	return &b.asks[0]
}

// dhcpReply records a server's message to a machine.
func (j *Journal) dhcpReply(m *machine, e *boot.Event) {
	r, name := roleOf(e)
	at := e.At
	dropped := e.Outcome == boot.Dropped
	if !dropped {
		j.scene.replied(m, at, boot.Addr(e.Server), boot.Addr(e.Endpoint))
	}
	given := boot.Addr(e.Given)
	b := m.newest()
	if b != nil && r == ack && b.ask(e.V6).confirmsAnother(given, boot.Addr(e.Server)) {
		r = otherRole // Smee confirms a REQUEST for another server's offer as well; the machine does not take it.
	}
	if !dropped && r == ack && given.IsValid() {
		j.bind(m, given, at, max(time.Minute, time.Duration(e.Lease)*time.Second))
	}
	if e.V6 && m.layer != 0 && e.XID == m.layer {
		return // The answer to the firmware's IP layer.
	}
	if b == nil {
		b = j.newBoot(m, e)
	}
	if b.stage == "" {
		b.setStage(DHCP, e.MAC)
	}
	if (b.state == Booted || b.state == Silent) && b.ask(e.V6).asked == 0 {
		return // The answer to a system that renews its lease.
	}
	s := b.stage
	i := b.step(s, at)
	b.sign(at)
	result := "sent on"
	if dropped {
		result = "dropped: " + text(e, boot.Reason, maxName)
	}
	from := addrPort(e)
	j.add(b, i, answer{
		kind: name, text: replyText(e), result: result, ok: !dropped && r != nak, from: from,
		begin: at - int64(max(0, e.Took)), end: at,
	})
	a := b.ask(e.V6)
	if dropped {
		b.replyDropped(a, e, r)
		return
	}
	a.lost = ""
	a.asked = 0
	b.steps[i].from = from
	a.heard(e)
	m.rise(offered)
	switch r {
	case offer:
		a.offers++
		a.offered = at
		a.proxy = a.proxy || !e.V6 && !given.IsValid()
	case ack:
		a.acked, a.offers, a.naks = at, 0, 0
		a.chosen = boot.Addr([16]byte{})
		b.moved = at
		if given.IsValid() {
			a.address = given
			b.steps[i].text = given.String()
		}
		b.steps[i].result = OK
		m.rise(serviced)
		j.scene.passed(s, at)
	case nak:
		a.naks++
	}
}

// replyDropped records why a server's message did not reach the machine.
func (b *record) replyDropped(a *ask, e *boot.Event, r role) {
	if string(e.Text(boot.Reason)) == "reply-from-client" {
		if a.rogue = boot.Addr(e.Server); !a.rogue.IsValid() {
			a.rogue = boot.Addr(e.Endpoint)
		}
		if r == ack {
			a.chosen = a.rogue
		}
		return
	}
	a.lost = text(e, boot.Reason, maxName)
	if a.asked == 0 || a.lost == "unsolicited" {
		b.strays++
		b.stray = a.lost
	}
}

// heard notes the server of a message that reached the machine, and the file that it names.
func (a *ask) heard(e *boot.Event) {
	a.server, a.next = boot.Addr(e.Server), boot.Addr(e.Next)
	if !a.server.IsValid() { // DHCPv6 servers are known by a DUID.
		a.server = boot.Addr(e.Endpoint)
	}
	if a.server.IsValid() && !slices.Contains(a.servers, a.server) && len(a.servers) < maxServers {
		a.servers = append(a.servers, a.server)
	}
	if file := text(e, boot.File, maxFile); file != "" {
		a.file = file
	}
}

// confirmsAnother tells whether an ACK of a server is about an address of its own, while the machine asked for that of
// another.
func (a *ask) confirmsAnother(given, server netip.Addr) bool {
	return a.chosen.IsValid() && !a.proxy && given.IsValid() && server.IsValid() && server != a.chosen
}

func replyText(e *boot.Event) string {
	var parts []string
	if a := boot.Addr(e.Given); a.IsValid() {
		parts = append(parts, a.String())
	}
	if file := text(e, boot.File, maxFile); file != "" {
		parts = append(parts, "boot file "+file)
	}
	if a := boot.Addr(e.Next); a.IsValid() {
		parts = append(parts, "next server "+a.String())
	}
	return strings.Join(parts, ", ")
}

// rise raises a machine's rank.
func (m *machine) rise(to rank) { m.rank = max(m.rank, to) }
