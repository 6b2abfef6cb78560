package hardware

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Bounds of the index.
const (
	// maxInterfaces and maxArch bound what is kept of one object: its interfaces, and bytes of an architecture's name.
	maxInterfaces, maxArch = 64, 16
	// maxRemembered is how many answers about unknown MACs are kept.
	maxRemembered = 4096
	// searchesPerSecond is how often the closest MAC is searched for.
	searchesPerSecond, searchesAtOnce = 100, 200
)

// entry is what is kept of a Hardware object.
type entry struct {
	namespace, name string
	full            string // namespace/name
	uid             types.UID
	ports           []port
}

// port is an interface of a machine.
type port struct {
	mac     [6]byte
	netboot bool
	arch    string
}

// entryOf reads a Hardware object.
func entryOf(given any) *entry {
	o, ok := given.(*object)
	if !ok {
		return nil
	}
	e := &entry{namespace: o.Namespace, name: o.Name, full: o.Namespace + "/" + o.Name, uid: o.UID}
	for _, i := range o.Spec.Interfaces {
		mac, ok := macOf(i.DHCP.MAC)
		if ok && e.port(mac) == nil && len(e.ports) < maxInterfaces {
			e.ports = append(e.ports, port{mac, i.Netboot.AllowPXE, boot.CleanCut(i.DHCP.Arch, maxArch)})
		}
	}
	return e
}

// macOf reads a MAC that a machine can have.
func macOf(text string) (mac [6]byte, ok bool) {
	parsed, err := net.ParseMAC(text)
	if err != nil || len(parsed) != 6 || bytes.Equal(parsed, mac[:]) {
		return mac, false
	}
	return [6]byte(parsed), true
}

// Keys are its MACs.
func (e *entry) Keys() (macs [][6]byte) {
	for _, p := range e.ports {
		macs = append(macs, p.mac)
	}
	return macs
}

// Compare has the order of names.
func (e *entry) Compare(other *entry) int { return strings.Compare(e.full, other.full) }

// port is the interface that has a MAC; nil if there is none.
func (e *entry) port(mac [6]byte) *port {
	if at := slices.IndexFunc(e.ports, func(p port) bool { return p.mac == mac }); at >= 0 {
		return &e.ports[at]
	}
	return nil
}

// index finds Hardware objects by MAC.
type index struct {
	table[[6]byte, *entry]

	remember  sync.Mutex
	answers   map[[6]byte]string // the closest MAC of unknown ones
	answersOf uint64             // the change that they hold for
	searches  *rate.Limiter
}

func newIndex() *index {
	x := &index{answers: map[[6]byte]string{}, searches: rate.NewLimiter(searchesPerSecond, searchesAtOnce)}
	x.found = map[[6]byte][]*entry{}
	return x
}

// bootable calls found for each MAC that may boot from the network, with its object.
func (x *index) bootable(found func(mac [6]byte, full string)) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for mac, all := range x.found {
		if all[0].port(mac).netboot {
			found(mac, all[0].full)
		}
	}
}

// lookup tells what is known of a MAC. Before all namespaces were read, nothing can be said of a MAC that is not there.
func (x *index) lookup(mac [6]byte, namespaces int) (journal.Hardware, bool) {
	e, other := x.of(mac)
	if e == nil {
		if !x.complete(namespaces) {
			return journal.Hardware{}, false
		}
		return journal.Hardware{Closest: x.closest(mac)}, true
	}
	p := e.port(mac)
	h := journal.Hardware{Known: true, Name: e.full, Netboot: p.netboot, Arch: p.arch}
	if other != nil {
		h.Also = other.full
	}
	return h, true
}

// closest names the most similar MAC and its object; nothing where none is similar, or too many are asked for.
func (x *index) closest(mac [6]byte) string {
	x.remember.Lock()
	defer x.remember.Unlock()
	x.mu.RLock()
	defer x.mu.RUnlock()
	if x.answersOf != x.change {
		x.answersOf = x.change
		clear(x.answers)
	}
	if text, ok := x.answers[mac]; ok {
		return text
	}
	if !x.searches.Allow() {
		return ""
	}
	if len(x.answers) >= maxRemembered {
		clear(x.answers)
	}
	text := ""
	if best, ok := nearest(mac, x.found); ok {
		text = fmt.Sprintf("%s (%s)", net.HardwareAddr(best[:]), x.found[best][0].full)
	}
	x.answers[mac] = text
	return text
}
