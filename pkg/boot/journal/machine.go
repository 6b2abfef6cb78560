package journal

import (
	"net"
	"net/netip"
	"slices"

	"github.com/tinkerbell/stack/pkg/boot"
)

// machine is what the journal keeps of one machine.
type machine struct {
	id          string
	macs        [][6]byte // the first is the one of the id; none where only the address is known
	uuid        [16]byte
	addresses   []netip.Addr // newest last
	host        string
	vendor      string
	user        string
	arch        uint16
	hasArch     bool
	boots       []*bootRecord // oldest first
	firmwareXID uint32        // of the last DHCPv6 message of the firmware's IP layer; 0: none
	lines       []line        // oldest first
	heard       int64         // last event
	rank        rank
	nat         netip.Addr // of a router that others' requests come from as well: what it loads cannot be told apart
	namesakes   namesakes
	rival       string // MAC of the machine that worked under its address when it was given it
	size        int    // bytes, estimated
	forgotten   bool
	ranked      place // among those of its rank
	past        place // among those with boots that are over
}

// line is one of syslog.
type line struct {
	at        int64
	priority  uint8
	tag, text string
}

// bootRecord is what the journal keeps of one boot.
type bootRecord struct {
	id            string
	mac           [6]byte // that asks; another one of the same machine may take its place
	begin         int64
	lastHeard     int64 // last sign of life
	moved         int64 // last sign that it got on
	state         State
	cause         *Cause
	rule          *rule // of the cause
	causeStep     Step  // the furthest step, or the one that failed, when the cause was found
	ended         bool  // BootEnded was told
	sawUnfinished bool  // its Workflow was seen while it was not yet successful
	succeededAt   int64 // when that was seen to be successful
	succeeded     bool  // the Workflow did
	othersRun     bool  // what was installed runs, as far as seen

	steps     []step
	messages  []message // of all steps, oldest first
	attempt   int       // index in steps where the present attempt begins: firmware may ask again after a loader
	attemptAt int64     // when the present attempt began
	furthest  Step      // the furthest step of the present attempt

	expected bool // Kubernetes waits for it; nothing was heard
	facts    facts
}

// step is a part of a boot.
type step struct {
	step       Step
	result     Result
	told       Result // what StepEnded said
	lastResult Result // what its last message that told anything said
	begin, end int64
	bytes      uint64
	from       netip.AddrPort
	text       string
}

// course is how a message goes on.
type course uint8

const (
	over     course = iota
	underWay        // it goes on
	waiting         // it goes on, and its endpoint has not answered yet
)

// message is one of DHCP, a transfer or a request, that views show as an answer.
type message struct {
	step       uint16 // index in the boot's steps
	ok         bool
	course     course
	count      uint32
	begin, end int64
	bytes      uint64
	expected   uint64
	from       netip.AddrPort
	kind       string
	text       string
	result     string
}

// Bounds of what a machine may have of things that no setting bounds.
const (
	maxMACs      = 8 // more than that have one UUID: it is not a machine's
	maxAddresses = 4
	maxSteps     = 40
	maxServers   = 4
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
	costMachine = 1500
	costBoot    = 1900
	costStep    = 240
	costMessage = 208
	costLine    = 96
)

func macString(mac [6]byte) string { return net.HardwareAddr(mac[:]).String() }

// newest is the boot that goes on or went on last; nil if there is none.
func (m *machine) newest() *bootRecord {
	if len(m.boots) == 0 {
		return nil
	}
	return m.boots[len(m.boots)-1]
}

// bootAt is the boot that something belongs to that began at a time.
func (m *machine) bootAt(begin int64) *bootRecord {
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

func (b *bootRecord) measure() int {
	n := costBoot + costStep*len(b.steps) + costMessage*len(b.messages)
	for i := range b.steps {
		n += len(b.steps[i].text)
	}
	for i := range b.messages {
		n += len(b.messages[i].text) + len(b.messages[i].result)
	}
	if b.cause != nil {
		n += len(b.cause.Text)
		for i := range b.cause.Others {
			n += len(b.cause.Others[i].Text) + len(b.cause.Others[i].Against)
		}
	}
	return n
}

// text is an event's text as it is kept: cut and cleaned.
func text(e *boot.Event, f boot.Field, most int) string {
	t := e.Text(f)
	return boot.Clean(t[:min(len(t), most)])
}

// order is the place of a step in a boot; steps that say nothing about how far it is have none.
func (s Step) order() int { return orders[s] }

var orders = map[Step]int{
	DHCP: 1, Loader: 2, IPXEDHCP: 3, Script: 4, Kernel: 5, Initramfs: 6, OSDHCP: 7, Syslog: 8, Metadata: 9, Agent: 10,
	Files: 11,
}

func (s Step) isDHCP() bool { return s == DHCP || s == IPXEDHCP || s == OSDHCP }
