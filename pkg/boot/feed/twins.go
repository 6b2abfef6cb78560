package feed

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

const (
	// moment is how far apart in time two relays' events of one packet are at most.
	moment = 500 * time.Millisecond
	// twinSlots is how many packets are remembered. Of two that share a place the later one counts.
	twinSlots = 4096
)

// twins finds DHCP messages that two relays have told of: both hear the broadcast, and both get the servers' answers.
// It may be used by several goroutines, and its zero value is ready.
type twins struct {
	dropped atomic.Uint64

	mu    sync.Mutex
	seed  maphash.Seed
	slots []sighting
}

// sighting is a packet that a program has told of.
type sighting struct {
	packet  packet
	session string
	at      int64
	passed  bool
}

// packet is what two relays' events of one packet have in common.
type packet struct {
	kind   boot.Kind
	dhcp   uint8
	v6     bool
	mac    [6]byte
	xid    uint32
	server [16]byte
}

// note notes the packet of an event, and reports whether it is a twin: another program told of it a moment ago. It is
// none where that packet was dropped there and passed on here.
func (t *twins) note(e *boot.Event, session string) bool {
	if e.Kind != boot.DHCPRequest && e.Kind != boot.DHCPReply {
		return false
	}
	p := packet{kind: e.Kind, dhcp: e.DHCP, v6: e.V6, mac: e.MAC, xid: e.XID, server: e.Server}
	now := sighting{p, session, e.At, e.Outcome == boot.Passed}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slots == nil {
		t.seed, t.slots = maphash.MakeSeed(), make([]sighting, twinSlots)
	}
	slot := &t.slots[maphash.Comparable(t.seed, p)%twinSlots]
	apart := time.Duration(e.At - slot.at).Abs()
	if slot.packet == p && slot.session != session && apart < moment && (slot.passed || !now.passed) {
		t.dropped.Add(1)
		return true
	}
	*slot = now
	return false
}
