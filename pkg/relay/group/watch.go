package group

import (
	"math/bits"
	"time"
)

// Verdict is whether this replica relays a message.
type Verdict uint8

// The verdicts.
const (
	Ours      Verdict = iota // this replica relays it
	Others                   // another one does
	TakenOver                // another one should have, and its machine has waited for long
)

// Ask is a machine's message.
type Ask struct {
	// Identity is the machine's identity of RFC 3074 section 5: see [Bucket].
	Identity []byte
	// Tag identifies the machine here. It is 0 for a machine without an identity, which no replica takes over.
	Tag uint64
	// Kind is the message's type, and XID its transaction.
	Kind uint8
	XID  uint32
	// Begins tells that a machine begins with this message (DISCOVER, SOLICIT), which it may repeat with another XID.
	Begins bool
	// Waited is for how long the machine has been asking, by its own message.
	Waited time.Duration
}

// Watch decides about the messages of one listener. It is for one goroutine; nil relays everything.
type Watch struct {
	group   *Group
	offset  int64 // of the group's clock from the caller's
	entries [sets][ways]entry
}

// Bounds of the machines whose repetitions are counted. A set is full when eight machines of it ask at the same time;
// then the machine that asked longest ago is forgotten, and is taken over only when its replica is gone.
const (
	sets = 512
	ways = 8
	// forgotten is the silence after which a machine begins anew.
	forgotten = 64 * time.Second
)

// entry is a machine that another replica answers for; the zero value is none.
type entry struct {
	tag         uint32
	xid         uint32
	first, last int64
	kind        uint8
}

// NewWatch makes a watch of a group for a caller whose times are since start. It is nil where there is no group.
func NewWatch(g *Group, start time.Time) *Watch {
	if g == nil {
		return nil
	}
	return &Watch{group: g, offset: int64(start.Sub(g.start))}
}

// Decide decides about a message.
func (w *Watch) Decide(a *Ask, now int64) Verdict {
	if w == nil {
		return Ours
	}
	rank := w.group.rank(Bucket(a.Identity), now+w.offset)
	if rank == 0 {
		return Ours
	}
	again, since := w.note(a, now)
	// However many replicas claim to be there, a machine waits no longer than twice the patience.
	if wait := Patience * time.Duration(min(rank, 2)); again && rank != unsettled && max(since, a.Waited) >= wait {
		return TakenOver
	}
	return Others
}

// note remembers a message. It returns whether the machine repeats itself, and for how long it has. A message of
// another type begins anew: a machine that sends a REQUEST got an OFFER.
func (w *Watch) note(a *Ask, now int64) (again bool, since time.Duration) {
	if a.Tag == 0 {
		return false, 0
	}
	set, tag := &w.entries[a.Tag%sets], max(uint32(a.Tag>>32), 1)
	e := &set[0]
	for i := range set {
		if set[i].tag == tag {
			e = &set[i]
			break
		}
		if set[i].last < e.last {
			e = &set[i]
		}
	}
	known := e.tag == tag && e.kind == a.Kind && now-e.last <= int64(forgotten) && (a.Begins || e.xid == a.XID)
	if !known {
		*e = entry{tag: tag, xid: a.XID, kind: a.Kind, first: now, last: now}
		return false, 0
	}
	e.last, e.xid = now, a.XID
	return true, time.Duration(now - e.first)
}

// Seconds is the time in the field secs of a DHCPv4 message. Some firmware writes the field in little-endian order: of
// the two readings the smaller one counts.
func Seconds(secs uint16) time.Duration {
	return time.Duration(min(secs, bits.ReverseBytes16(secs))) * time.Second
}
