package journal

import (
	"slices"

	"github.com/tinkerbell/stack/internal/list"
)

// rank is how much a machine has shown to be real. Machines of a lower rank make room first.
type rank uint8

// The ranks.
const (
	heardOf  rank = iota // it only asked: anybody can forge that, for any number of MACs
	offered              // a server offered it something
	serviced             // it has an address or was served a file ("served" records a transfer)
	ranks
)

// place is a machine's place in a list of machines by the time they were heard; it may be in none.
type place struct {
	list.Link[*machine]
	in *list.List[*machine]
}

// move makes a machine the youngest of a list; nil: of none.
func (p *place) move(m *machine, to *list.List[*machine]) {
	if p.in != nil {
		p.in.Remove(&p.Link)
	}
	p.in = to
	if to != nil {
		to.Add(&p.Link, m)
	}
}

// touched puts a machine that was heard in its lists' places and accounts for what it takes now.
func (j *Journal) touched(m *machine) {
	m.ranked.move(m, &j.byRank[m.rank])
	m.past.move(m, nil)
	if len(m.boots) > 1 {
		m.past.move(m, &j.withOldBoots)
	}
	j.account(m)
}

// account brings the estimate of memory up to date, after a machine has changed without being heard, too.
func (j *Journal) account(m *machine) {
	size := m.measure()
	j.bytes += size - m.size
	m.size = size
}

// shrink makes room until the limits hold, after each event and each tick. The machine that was just heard stays.
func (j *Journal) shrink(keep *machine) {
	l := j.options.Limits
	for len(j.ids) > l.Machines {
		if !j.forget(j.victim(keep)) {
			return
		}
	}
	for j.bytes > l.Bytes {
		// Machines that were never served are the first to go, but for a share: those may be the operator's question.
		if m := j.oldestOf(heardOf, keep); m != nil && j.byRank[heardOf].Len() > l.Machines/8 {
			j.forget(m)
		} else if m := j.withOldBoots.First(); m != nil {
			m.boots = slices.Delete(m.boots, 0, 1)
			if len(m.boots) == 1 {
				m.past.move(m, nil)
			}
			j.account(m)
		} else if !j.forget(j.victim(keep)) {
			return
		}
	}
}

// victim chooses the machine that makes room for others: the oldest that only asked, if those have more than their
// share of an eighth; else the oldest that does not boot any more; else the oldest of the lowest rank, which may be
// the machine that was just heard. So nothing that only asks takes the place of a machine that was answered and boots.
func (j *Journal) victim(keep *machine) *machine {
	if m := j.oldestOf(heardOf, keep); m != nil && j.byRank[heardOf].Len() > j.options.Limits.Machines/8 {
		return m
	}
	for r := offered; r < ranks; r++ {
		if m := j.oldestOf(r, keep); m != nil && !m.isBooting() {
			return m
		}
	}
	for r := heardOf; r < serviced; r++ {
		if m := j.byRank[r].First(); m != nil {
			return m
		}
	}
	return j.oldestOf(serviced, keep)
}

// isBooting tells whether a machine boots at present.
func (m *machine) isBooting() bool {
	b := m.newest()
	return b != nil && (b.state == Booting || b.state == Stuck)
}

func (j *Journal) oldestOf(r rank, keep *machine) *machine {
	m := j.byRank[r].First()
	if m == keep && m != nil {
		m = m.ranked.Next()
	}
	return m
}

// Forgotten is how many machines made room for others so far.
func (j *Journal) Forgotten() uint64 { return j.forgotten.Load() }

// forget removes a machine that makes room for others. It returns false if there is none.
func (j *Journal) forget(m *machine) bool {
	if m == nil {
		return false
	}
	j.remove(m)
	j.forgotten.Add(1)
	return true
}

// remove removes a machine.
func (j *Journal) remove(m *machine) {
	m.ranked.move(m, nil)
	m.past.move(m, nil)
	delete(j.ids, m.id)
	for _, mac := range m.macs {
		delete(j.macs, mac)
	}
	for _, a := range m.addresses {
		if j.addresses[a].machine == m {
			delete(j.addresses, a)
		}
	}
	if j.uuids[m.uuid] == m {
		delete(j.uuids, m.uuid)
	}
	if b := m.newest(); b != nil {
		j.endBoot(m, b, b.lastHeard)
	}
	delete(j.active, m)
	j.bytes -= m.size
	m.forgotten = true
	j.dirty = true
}
