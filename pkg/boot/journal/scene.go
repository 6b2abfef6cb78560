package journal

import (
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"
)

// scene is what is known of all machines together, so that the trouble of a service can be told from a machine's.
type scene struct {
	servers [maxScene]netip.Addr // DHCP servers that were heard, by identifier and by address
	next    int
	last    [2]sight                  // the last two machines that got a DHCP reply
	asking  [maxScene]sight           // machines that sent a DISCOVER lately
	turn    int                       // place in asking
	loaded  int64                     // when a machine last asked this replica for anything but DHCP
	got     map[Step]int64            // when a machine last got through a step
	stuck   map[Step]*[maxScene]sight // machines that are stuck at a step
	files   map[string][]string       // by directory: names that were served lately
}

// sight is a machine at a time.
type sight struct {
	machine *machine
	at      int64
}

const (
	maxScene       = 16
	maxDirectories = 256
	maxNames       = 6
	// crowd is how many machines make it unlikely that each has a fault of its own.
	crowd = 3
)

func newScene() scene {
	return scene{got: map[Step]int64{}, stuck: map[Step]*[maxScene]sight{}, files: map[string][]string{}}
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

// asks takes note of a DISCOVER.
func (s *scene) asks(m *machine, at int64) { note(&s.asking, &s.turn, m, at) }

func note(places *[maxScene]sight, turn *int, m *machine, at int64) {
	for i := range places {
		if places[i].machine == m {
			places[i].at = at
			return
		}
	}
	places[*turn%maxScene] = sight{m, at}
	*turn++
}

// waiting counts machines, m included, that ask for an address without an answer, and began to after the last reply to
// anybody: one that the server leaves alone while it answers others says nothing of the server.
func (s *scene) waiting(m *machine, now int64) int {
	n := 1
	for _, o := range s.asking {
		if o.machine == nil || o.machine == m || o.machine.forgotten || now-o.at > int64(2*time.Minute) {
			continue
		}
		if b := o.machine.newest(); b != nil && (b.asks[0].alone(s.last[0].at) || b.asks[1].alone(s.last[0].at)) {
			n++
		}
	}
	return n
}

// alone tells whether a machine asks again and again since a time.
func (a *ask) alone(since int64) bool { return a.asked > 1 && a.opened >= since }

// passed takes note that a machine got through a step.
func (s *scene) passed(step Step, at int64) { s.got[step] = max(s.got[step], at) }

// held takes note that a machine is stuck at a step since a time, and counts the machines that are, if none got past
// that step since the first of them was stuck; or got through it, for those that fail it.
func (s *scene) held(m *machine, step Step, since int64, fails bool) (machines int, first int64) {
	places := s.stuck[step]
	if places == nil {
		places = new([maxScene]sight)
		s.stuck[step] = places
	}
	own, free := -1, -1
	first = since
	for i := range places {
		switch o := &places[i]; {
		case o.machine == m:
			own = i
		case o.machine == nil:
			free = i
		case !o.machine.stuckAt(step):
			*o = sight{}
			free = i
		default:
			machines++
			first = min(first, o.at)
		}
	}
	if own < 0 {
		own = max(free, 0)
	}
	places[own] = sight{m, since}
	for other, at := range s.got {
		if at >= first && (other.order() > step.order() || fails && other == step) {
			return 1, since
		}
	}
	return machines + 1, first
}

// stuckAt tells whether a machine is still stuck at a step.
func (m *machine) stuckAt(step Step) bool {
	b := m.newest()
	return !m.forgotten && b != nil && b.state == Stuck && b.at == step
}

// servedFile takes note of a file that was served.
func (s *scene) servedFile(file string) {
	dir, name := directory(file), path.Base(file)
	names := s.files[dir]
	if i := slices.Index(names, name); i >= 0 {
		names = slices.Delete(names, i, i+1)
	} else if len(names) == maxNames {
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

// neighbours lists files that were served from a file's directory.
func (s *scene) neighbours(file string) string {
	names := s.files[directory(file)]
	if len(names) == 0 {
		return ""
	}
	quoted := make([]string, 0, len(names))
	for _, n := range names {
		if n != path.Base(file) {
			quoted = append(quoted, quote(n))
		}
	}
	return strings.Join(quoted, ", ")
}

// directory is a file's directory, the same one for all machines where it is named after a MAC.
func directory(file string) string {
	if i := strings.IndexByte(file, '?'); i >= 0 {
		file = file[:i]
	}
	dir := path.Dir(strings.TrimPrefix(file, "/"))
	if macIn([]byte(path.Base(dir))) != ([6]byte{}) {
		dir = path.Join(path.Dir(dir), "MAC")
	}
	return dir
}
