package journal

import (
	"net"
	"net/netip"
	"slices"

	"github.com/tinkerbell/stack/pkg/boot"
)

// machine is what the journal keeps of one machine.
type machine struct {
	id        string
	macs      [][6]byte // the first is the one of the id; none where only the address is known
	uuid      [16]byte
	addresses []netip.Addr // newest last
	host      string
	vendor    string
	user      string
	arch      uint16
	hasArch   bool
	boots     []*record // oldest first
	layer     uint32    // transaction of the firmware's IP layer, the last of DHCPv6; 0: none
	lines     []line    // oldest first
	heard     int64     // last event
	rank      rank
	size      int // bytes, estimated
	forgotten bool
	links     [lists]link
}

// line is one of syslog.
type line struct {
	at        int64
	priority  uint8
	tag, text string
}

// record is what the journal keeps of one boot.
type record struct {
	id      string
	mac     [6]byte // that asks; another one of the same machine may take its place
	begin   int64
	end     int64 // last sign of it
	moved   int64 // last sign that it got on
	state   State
	cause   *Cause
	ended   bool // BootEnded was told
	steps   []step
	answers []answer // of all steps, oldest first
	attempt int      // index in steps where the present attempt begins: firmware may ask again after a loader
	at      Step     // the furthest step of the present attempt

	// What the machine says of itself in its first message of this boot, and as iPXE.
	first, ipxe string
	firmware    bool // its firmware or iPXE was heard: it boots from the network
	local       bool // it runs a system that did not come from the network

	stage  Step   // of DHCP: who asks at present
	asks   [2]ask // DHCP by IPv4 and by IPv6, since the stage began
	strays int    // messages for it that only make sense if its DISCOVERs go elsewhere
	stray  string // the reason of the last one

	failed   failure // the last thing that went wrong, until something of the same step goes right
	returned failure // loader after which the firmware asked again
	loads    int     // loaders served since a script was
	kernel   bool    // a kernel was served
	fetches  []fetch // files served whole, to see which are fetched again
	streams  int     // of the agent, open
	short    int     // of the agent, ended within moments, in a row
	polls    int64   // when the agent first asked for work in vain
	reported bool    // the agent reported on an action
	finished int64   // when the agent's work seemed done; 0 if it goes on
	called   int64   // the agent's last call
	before   *Cause  // that the two boots before this one ended with
}

// step is a part of a boot.
type step struct {
	step       Step
	result     Result
	told       Result // what StepEnded said
	settled    Result // what its last answer that told anything said
	begin, end int64
	bytes      uint64
	from       netip.AddrPort
	text       string
}

// answer is a message, transfer or request.
type answer struct {
	step       uint16 // index in the boot's steps
	ok         bool
	going      bool
	count      uint32
	begin, end int64
	bytes      uint64
	expected   uint64
	from       netip.AddrPort
	kind       string
	text       string
	result     string
}

// ask is how a DHCP exchange stands.
type ask struct {
	asked     int    // DISCOVERs and REQUESTs since the last reply
	discovers int    // DISCOVERs in all
	opened    int64  // the first of those asked
	last      int64  // the last message of the machine
	drop      string // why the relay dropped the last of them; empty: it did not
	lost      string // why the relay dropped the last reply; empty: it did not
	offers    int    // since the last REQUEST
	offered   int64  // the last offer
	proxy     bool   // an offer had no address: another server is expected to give it
	servers   []netip.Addr
	chosen    netip.Addr // server that a REQUEST named and that offered nothing here
	rogue     netip.Addr // server that answered on the machine's side of the relay
	requests  int
	naks      int
	acked     int64
	address   netip.Addr
	file      string
	next      netip.Addr
	server    netip.Addr
	relay     netip.Addr     // giaddr of a router before us
	to        netip.AddrPort // server that was asked
}

// failure is something that went wrong, as a cause will tell it.
type failure struct {
	step     Step
	at       int64
	kind     boot.Kind
	outcome  boot.Outcome
	status   uint16
	file     string
	message  string
	place    string
	from     netip.AddrPort
	bytes    uint64
	expected uint64
	resent   uint32
	block    uint16
	count    int

	byMachine bool // the machine broke off
}

// fetch is how often a file was served whole.
type fetch struct {
	file  string
	count int
}

// Bounds of what a machine may have of things that no setting bounds.
const (
	maxMACs      = 8 // more than that have one UUID: it is not a machine's
	maxAddresses = 4
	maxSteps     = 40
	maxServers   = 4
	maxFetches   = 8
)

// Bounds of texts, in bytes. Cleaned texts may have three times as many.
const (
	maxName = 64
	maxFile = 200
	maxText = 256
)

// Estimates of memory, in bytes, with the allocator's rounding and the maps' share. A test compares them with what
// is really taken.
const (
	costMachine = 1400
	costBoot    = 1700
	costStep    = 240
	costAnswer  = 208
	costLine    = 96
)

func macString(mac [6]byte) string { return net.HardwareAddr(mac[:]).String() }

// newest is the boot that goes on or went on last; nil if there is none.
func (m *machine) newest() *record {
	if len(m.boots) == 0 {
		return nil
	}
	return m.boots[len(m.boots)-1]
}

// bootAt is the boot that something belongs to that began at a time.
func (m *machine) bootAt(begin int64) *record {
	for _, b := range slices.Backward(m.boots) {
		if b.begin <= begin {
			return b
		}
	}
	if len(m.boots) > 0 {
		return m.boots[0]
	}
	return nil
}

// measure estimates the memory that a machine takes.
func (m *machine) measure() int {
	n := costMachine + len(m.host) + len(m.vendor) + len(m.user) + 64*len(m.macs) + 96*len(m.addresses)
	for _, b := range m.boots {
		n += b.measure()
	}
	for i := range m.lines {
		n += m.lines[i].measure()
	}
	return n
}

func (l *line) measure() int { return costLine + len(l.tag) + len(l.text) }

func (b *record) measure() int {
	n := costBoot + costStep*len(b.steps) + costAnswer*len(b.answers)
	for i := range b.steps {
		n += len(b.steps[i].text)
	}
	for i := range b.answers {
		n += len(b.answers[i].text) + len(b.answers[i].result)
	}
	for i := range b.fetches {
		n += len(b.fetches[i].file)
	}
	if b.cause != nil {
		n += len(b.cause.Text) + len(b.cause.Remedy)
	}
	return n
}

// text is an event's text as it is kept: cut and cleaned.
func text(e *boot.Event, f boot.Field, most int) string {
	t := e.Text(f)
	return boot.Clean(t[:min(len(t), most)])
}

// order is the place of a step in a boot; steps that say nothing about how far it is have none.
func (s Step) order() int {
	switch s {
	case DHCP:
		return 1
	case Loader:
		return 2
	case IPXEDHCP:
		return 3
	case Script:
		return 4
	case Kernel:
		return 5
	case Initramfs:
		return 6
	case OSDHCP:
		return 7
	case Syslog:
		return 8
	case Metadata:
		return 9
	case Agent:
		return 10
	case Files:
		return 11
	default:
		return 0
	}
}

func (s Step) isDHCP() bool { return s == DHCP || s == IPXEDHCP || s == OSDHCP }
