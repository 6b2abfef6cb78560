package admit

import "time"

// ways is how many entries a set has: about as many as a cache line holds. In a full set the entry that was touched
// longest ago is replaced.
const ways = 8

// table remembers clients. Its size is fixed.
type table struct {
	sets [][ways]entry
}

// entry is one client; the zero value is none.
type entry struct {
	tag   uint32 // the upper half of the client's
	at    uint16 // when the entry was touched, in units of grain; it wraps around after two hours, which does little harm
	count uint8
	tries uint8
	paid  class // whose token the last request took
}

// grain is the resolution of an entry's time.
const grain = 125 * time.Millisecond

// newTable makes a table for a number of clients, which is a power of 2.
func newTable(clients int) table { return table{sets: make([][ways]entry, clients/ways)} }

func (t *table) set(tag uint64) *[ways]entry { return &t.sets[tag&uint64(len(t.sets)-1)] }

func short(tag uint64) uint32 { return max(uint32(tag>>32), 1) }

// find returns a client's entry, nil if there is none.
func (t *table) find(tag uint64) *entry {
	set, short := t.set(tag), short(tag)
	for i := range set {
		if set[i].tag == short {
			return &set[i]
		}
	}
	return nil
}

// put returns a client's entry, which is made if there is none.
func (t *table) put(tag uint64, now int64) (e *entry, isNew bool) {
	set, short := t.set(tag), short(tag)
	oldest := &set[0]
	for i := range set {
		e := &set[i]
		if e.tag == short {
			return e, false
		}
		if oldest.tag != 0 && (e.tag == 0 || e.age(now) > oldest.age(now)) {
			oldest = e
		}
	}
	*oldest = entry{tag: short}
	oldest.touch(now)
	return oldest, true
}

func (e *entry) touch(now int64) { e.at = uint16(now / int64(grain)) }

// age is the time since an entry was touched.
func (e *entry) age(now int64) time.Duration {
	return time.Duration(uint16(now/int64(grain))-e.at) * grain
}
