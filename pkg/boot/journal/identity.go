package journal

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// binding is the machine that an address belongs to.
type binding struct {
	machine *machine
	until   int64 // end of the lease; 0 if no server was heard to give it: another sign may take it over
}

// machineOf finds the machine that an event is about, or makes it. It is nil for events that name nobody.
func (j *Journal) machineOf(e *boot.Event) *machine {
	if e.Kind == boot.DHCPRequest || e.Kind == boot.DHCPReply {
		return j.byMAC(e.MAC, e.UUID)
	}
	client := boot.Addr(e.Client)
	bound := j.addresses[client]
	mac := macOf(e)
	// A machine with a lease is believed to be itself, whatever MAC its paths name: else it could speak for others.
	leased := bound.until > e.At
	if m := bound.machine; m != nil && (mac == [6]byte{} || (leased && len(m.macs) > 0)) {
		m.nat = netip.Addr{}
		return m
	}
	if m := j.namedBy(e, client); m != nil {
		return m
	}
	if m := j.macs[mac]; m != nil {
		if j.hasLease(m, e.At) {
			j.noteForeign(m, client)
			return nil
		}
		j.bind(m, client, e.At, noLease)
		return m
	}
	if _, shared := j.scene.nats[client]; shared && mac == ([6]byte{}) {
		return nil // One of several machines.
	}
	if mac != ([6]byte{}) {
		return j.adopt(mac, client, e.At)
	}
	if !client.IsValid() || slices.Contains(j.options.Self, client) {
		return nil // On one host its own questions come from the address that machines ask.
	}
	if runsSystem(e) {
		j.scene.strangerAt = max(j.scene.strangerAt, e.At)
	}
	if m := j.ids[client.String()]; m != nil {
		j.bind(m, client, e.At, noLease)
		return m
	}
	m := j.newMachine(client.String(), e.At)
	j.bind(m, client, e.At, noLease)
	return m
}

// namedBy is the machine whose MAC is in a line that comes from an address of nobody, as in the kernel's command line:
// one that has just loaded a system, which gave itself an address. It is nil if there is none.
func (j *Journal) namedBy(e *boot.Event, client netip.Addr) *machine {
	m := j.macs[macIn(e.Text(boot.Message))]
	if _, shared := j.scene.nats[client]; e.Kind != boot.Syslog || m == nil || shared {
		return nil
	}
	if b := m.newest(); b == nil || b.furthest != Kernel && b.furthest != Initramfs || b.oldestOpen() != nil {
		return nil
	}
	j.bind(m, client, e.At, noLease)
	return m
}

// runsSystem tells whether an event is one of an operating system.
func runsSystem(e *boot.Event) bool {
	s := stepOf(e, nil)
	return s == Syslog || s == Agent || s == Metadata
}

// hasLease tells whether a machine has an address by a server's word.
func (j *Journal) hasLease(m *machine, at int64) bool {
	for _, a := range m.addresses {
		if j.addresses[a].until > at {
			return true
		}
	}
	return false
}

// noteForeign notes a request that names a machine with a lease, and comes from an address that is not its own:
// somebody forges it, or the machine is behind a router that puts its own address there. Which of them cannot be told,
// so it changes nothing of the boot; the conflict is noted where the machine waits, or where one address names several.
func (j *Journal) noteForeign(m *machine, client netip.Addr) {
	before, known := j.scene.nats[client]
	if !known && len(j.scene.nats) >= maxNATs {
		return
	}
	all := before.with(m.macs[0])
	j.scene.nats[client] = all
	b := m.newest()
	for _, mac := range all {
		if one := j.macs[mac]; one != nil && (all.several() || b != nil && !b.state.over()) {
			one.nat = client
		}
	}
	if alone := j.ids[client.String()]; alone != nil {
		j.remove(alone) // It was no machine of its own.
	}
}

// byMAC finds or makes the machine of a MAC. A MAC that is new belongs to the machine of its UUID, if there is one.
func (j *Journal) byMAC(mac [6]byte, uuid [16]byte) *machine {
	if mac == ([6]byte{}) || mac[0]&1 != 0 { // none, or a group's
		return nil
	}
	m := j.macs[mac]
	if m == nil && unique(uuid) {
		if m = j.uuids[uuid]; m != nil {
			if len(m.macs) < maxMACs {
				m.macs = append(m.macs, mac)
				j.macs[mac] = m
			} else {
				m = nil // So many: it is the UUID of a whole series of boards.
			}
		}
	}
	if m == nil {
		m = j.newMachine(macString(mac), 0)
		m.macs = [][6]byte{mac}
		j.macs[mac] = m
	}
	if m.uuid == ([16]byte{}) && unique(uuid) {
		m.uuid = uuid
		if j.uuids[uuid] == nil {
			j.uuids[uuid] = m
		}
	}
	return m
}

// unique tells whether a UUID can be that of one machine: firmware without one sends a single byte again and again, or
// the sample of the board's maker.
func unique(uuid [16]byte) bool {
	return bytes.Count(uuid[:], uuid[:1]) < 14 &&
		uuid != [16]byte{0x00, 0x02, 0x00, 0x03, 0x00, 0x04, 0x00, 0x05, 0x00, 0x06, 0x00, 0x07, 0x00, 0x08, 0x00, 0x09} &&
		uuid != [16]byte{0x03, 0x00, 0x02, 0x00, 0x04, 0x00, 0x05, 0x00, 0x00, 0x06, 0x00, 0x07, 0x00, 0x08, 0x00, 0x09} &&
		uuid != [16]byte{0x12, 0x34, 0x56, 0x78, 0x12, 0x34, 0x12, 0x34, 0x12, 0x34, 0x12, 0x34, 0x56, 0x78, 0x90, 0xab}
}

// adopt makes the machine of a MAC that a path names. What was known of the address alone becomes its own.
func (j *Journal) adopt(mac [6]byte, client netip.Addr, at int64) *machine {
	m := j.ids[client.String()]
	if m == nil || at-m.heard > waitBootAgain {
		m = j.newMachine(macString(mac), at)
	} else {
		delete(j.ids, m.id)
		j.dirty = true
		m.id = macString(mac)
		j.ids[m.id] = m
	}
	m.macs = [][6]byte{mac}
	j.macs[mac] = m
	if b := m.newest(); b != nil {
		b.mac = mac
	}
	j.bind(m, client, at, noLease)
	return m
}

func (j *Journal) newMachine(id string, at int64) *machine {
	m := &machine{id: id, heard: at}
	j.ids[id] = m
	return m
}

// noLease is that of an address that no server was heard to give.
const noLease = 0

// bind takes note that a machine has an address: by a server's word for the time of a lease, or, with noLease, by
// another sign, which does not take an address from a machine that has it by a server's word.
func (j *Journal) bind(m *machine, a netip.Addr, at int64, lease time.Duration) {
	if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
		return
	}
	old := j.addresses[a]
	switch {
	case old.machine == m && lease == noLease:
		m.use(j, a)
		return
	case lease == noLease && old.machine != nil && old.until > at && len(old.machine.macs) > 0:
		return
	}
	if old.machine != nil && old.machine != m {
		b := old.machine.newest()
		if lease > 0 && old.until > at && b != nil && !b.state.over() && len(old.machine.macs) > 0 {
			m.rival = old.machine.id
		}
		old.machine.lose(a)
		j.account(old.machine)
	}
	bound := binding{machine: m}
	if lease > 0 {
		bound.until = at + int64(lease)
	}
	j.addresses[a] = bound
	m.use(j, a)
}

// use makes an address the newest of a machine, which forgets the oldest of too many.
func (m *machine) use(j *Journal, a netip.Addr) {
	if n := len(m.addresses); n > 0 && m.addresses[n-1] == a {
		return
	}
	m.lose(a)
	m.addresses = append(m.addresses, a)
	if len(m.addresses) > maxAddresses {
		old := m.addresses[0]
		m.addresses = m.addresses[1:]
		if j.addresses[old].machine == m {
			delete(j.addresses, old)
		}
	}
}

// lose takes an address off a machine.
func (m *machine) lose(a netip.Addr) {
	m.addresses = slices.DeleteFunc(m.addresses, func(own netip.Addr) bool { return own == a })
}

// release takes note that a machine gave an address up.
func (j *Journal) release(m *machine, a netip.Addr) {
	if j.addresses[a].machine == m {
		delete(j.addresses, a)
		m.lose(a)
	}
}

// macOf is the MAC that an event names, by itself or in a path; zero if there is none.
func macOf(e *boot.Event) [6]byte {
	if e.MAC == ([6]byte{}) && e.Kind != boot.DHCPRequest && e.Kind != boot.DHCPReply {
		return macIn(e.Text(boot.File))
	}
	return e.MAC
}

// macIn finds the MAC in a path, as Smee and PXELINUX put it there: a directory or file of its own, with colons, or
// with hyphens after the hardware type; or in a line, as a word or a value. Zero if there is none.
func macIn(text []byte) [6]byte {
	const length = len("52:54:00:5e:00:01")
	for part := range bytes.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(`/?=& ",`, r) }) {
		if len(part) == length+len("01-") {
			part = bytes.TrimPrefix(part, []byte("01-"))
		}
		if len(part) != length {
			continue
		}
		if mac, err := net.ParseMAC(string(part)); err == nil && mac[0]&1 == 0 && [6]byte(mac) != [6]byte{} {
			return [6]byte(mac)
		}
	}
	return [6]byte{}
}

// lookup finds a machine as people name it: its ID, any of its MACs in any notation, or its address.
func (j *Journal) lookup(id string) *machine {
	if m := j.ids[id]; m != nil {
		return m
	}
	if mac, err := net.ParseMAC(strings.TrimSpace(id)); err == nil && len(mac) == 6 {
		return j.macs[[6]byte(mac)]
	}
	if a, err := netip.ParseAddr(strings.TrimSpace(id)); err == nil {
		return j.addresses[a.Unmap()].machine
	}
	return nil
}
