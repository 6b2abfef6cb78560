package journal

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// scene is what is known of all machines together, so that the trouble of a service can be told from a machine's, and
// of the programs that tell of machines.
type scene struct {
	servers    [maxScene]netip.Addr // DHCP servers that were heard, by identifier and by address
	next       int
	last       [2]sight // the last two machines that got a DHCP reply
	alive      int64    // when a host that answers DHCP last served a file
	strangerAt int64    // when an address without a lease last ran a system
	waiting    int      // machines that ask for an address without an answer since the last reply to anybody
	crowds     map[string]crowd
	files      map[string][]string  // by route and directory: names that were served lately
	nats       map[netip.Addr]named // machines whose names came from an address that is none of theirs
	health     Witness
	gaps       [2]blind // when relay and proxies were last not heard well
}

// sight is a machine at a time.
type sight struct {
	machine *machine
	at      int64
}

// crowd is how many machines have one cause, since when, and whether all of them have one architecture.
type crowd struct {
	machines int
	since    int64
	arch     string
}

// named are the MACs of machines that one address named: the first, and the last other one; zero: none.
type named [2][6]byte

// with adds a MAC.
func (n named) with(mac [6]byte) named {
	switch n[0] {
	case [6]byte{}:
		n[0] = mac
	case mac:
	default:
		n[1] = mac
	}
	return n
}

// several tells whether the address named more than one machine.
func (n named) several() bool { return n[1] != [6]byte{} }

// witnesses is a set of the programs that tell of machines.
type witnesses uint8

const (
	relays witnesses = 1 << iota
	proxies
)

// blind is why a witness last missed something, and when.
type blind struct {
	at  int64
	why string
}

const (
	maxScene       = 16
	maxDirectories = 256
	maxNames       = 6
	maxNATs        = 64
	// manyMachines is how many machines make it unlikely that each has a fault of its own.
	manyMachines = 3
)

func newScene() scene {
	return scene{crowds: map[string]crowd{}, files: map[string][]string{}, nats: map[netip.Addr]named{}}
}

// hear takes note of which witnesses are not heard.
func (s *scene) hear(w Witness, now int64) {
	if w.RelayLost {
		s.gaps[0] = blind{now, "dhcp-relay is not connected"}
	}
	if w.Proxies != "" {
		s.gaps[1] = blind{now, "only " + w.Proxies + " of the stack-proxy pods tell of machines"}
	}
	if n := w.Dropped - s.health.Dropped; w.Dropped > s.health.Dropped {
		for i := range s.gaps {
			s.gaps[i] = blind{now, fmt.Sprintf("%d events were lost", n)}
		}
	}
	s.health = w
}

// gap is why witnesses may have missed something since a time; empty if they were well.
func (s *scene) gap(w witnesses, since int64) string {
	for i, g := range s.gaps {
		if w&(1<<i) != 0 && g.at != 0 && g.at >= since {
			return g.why + " (" + clock(g.at) + ")"
		}
	}
	return ""
}

// replied takes note of a DHCP reply.
func (s *scene) replied(m *machine, at int64, servers ...netip.Addr) {
	if s.last[0].machine != m {
		s.last[1] = s.last[0]
	}
	s.last[0] = sight{m, at}
	for _, a := range servers {
		if a.IsValid() && !slices.Contains(s.servers[:], a) {
			s.servers[s.next%maxScene] = a
			s.next++
		}
	}
}

// serves tells whether a DHCP server answered a machine through this relay.
func (s *scene) serves(a netip.Addr) bool { return slices.Contains(s.servers[:], a) }

// other is the last reply to another machine than m.
func (s *scene) other(m *machine) (at int64, found bool) {
	for _, l := range s.last {
		if l.machine != nil && l.machine != m {
			return l.at, true
		}
	}
	return 0, false
}

// count looks at all machines that boot: how many wait for an address, and how many have one cause.
func (s *scene) count(active map[*machine]struct{}) {
	clear(s.crowds)
	s.waiting = 0
	for m := range active {
		b := m.newest()
		if a := &b.facts.asks; a[0].alone(s.last[0].at) || a[1].alone(s.last[0].at) {
			s.waiting++
		}
		if b.cause == nil {
			continue
		}
		key := string(b.furthest) + b.cause.Name
		c, known := s.crowds[key]
		c.machines++
		if !known {
			c.since, c.arch = b.cause.Since.UnixNano(), m.archName()
		}
		c.since = min(c.since, b.cause.Since.UnixNano())
		if c.arch != m.archName() {
			c.arch = ""
		}
		s.crowds[key] = c
	}
}

// crowd is a sentence about the machines that have a cause, where they are many.
func (s *scene) crowd(b *bootRecord, cause string) string {
	c := s.crowds[string(b.furthest)+cause]
	if c.machines < manyMachines {
		return ""
	}
	all := ""
	if c.arch != "" {
		all = ", all " + c.arch + ","
	}
	return fmt.Sprintf(" %d machines%s stop here since %s.", c.machines, all, clock(c.since))
}

// servedFile takes note of a file that was served.
func (s *scene) servedFile(e *boot.Event) {
	if s.serves(boot.Addr(e.Endpoint)) {
		s.alive = max(s.alive, e.At)
	}
	file := text(e, boot.File, maxFile)
	dir, name := directory(text(e, boot.Where, maxName), file), path.Base(file)
	names := s.files[dir]
	if slices.Contains(names, name) {
		return
	}
	if len(names) == maxNames {
		names = slices.Delete(names, 0, 1)
	}
	if _, known := s.files[dir]; !known && len(s.files) >= maxDirectories {
		for old := range s.files {
			delete(s.files, old)
			break
		}
	}
	s.files[dir] = append(names, name)
}

// neighbours lists files that were served from a directory, but one.
func (s *scene) neighbours(dir, file string) string {
	var quoted []string
	for _, n := range s.files[dir] {
		if n != path.Base(file) {
			quoted = append(quoted, quote(n))
		}
	}
	return strings.Join(quoted, ", ")
}

// directory is a file's directory on a route, the same one for all machines where it is named after a MAC.
func directory(route, file string) string {
	if i := strings.IndexByte(file, '?'); i >= 0 {
		file = file[:i]
	}
	dir := path.Dir(strings.TrimPrefix(file, "/"))
	if macIn([]byte(path.Base(dir))) != ([6]byte{}) {
		dir = path.Join(path.Dir(dir), "MAC")
	}
	return route + ":" + dir
}

// namesakes tell whether two machines speak by one MAC: two UUIDs, or two processors.
type namesakes struct {
	last, other namesake
	lastAt      int64
	changes     int
}

// namesake is how a firmware names its machine.
type namesake struct {
	processor family
	uuid      [16]byte
}

func (t namesake) String() string { return string(t.processor) + " " + uuidString(t.uuid) }

// ask takes note of a firmware's message.
func (t *namesakes) ask(e *boot.Event) {
	_, processor := families(archOf(e))
	who := namesake{processor, e.UUID}
	switch {
	case processor == "" || !unique(e.UUID):
		return
	case who == t.last || t.last == namesake{}:
	case e.At-t.lastAt > int64(time.Hour): // a NIC that was moved
		t.other, t.changes = namesake{}, 0
	default:
		t.other = t.last
		t.changes++
	}
	t.last, t.lastAt = who, e.At
}
