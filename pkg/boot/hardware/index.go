package hardware

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// Bounds of the index.
const (
	// maxObjects is how many objects of one namespace are kept; more are left out, and counted.
	maxObjects = 50_000
	// maxRemembered is how many answers about unknown MACs are kept.
	maxRemembered = 4096
	// searchesPerSecond is how often the closest MAC is searched for.
	searchesPerSecond, searchesAtOnce = 100, 200
)

// entry is what is kept of an object.
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

// claim is an object's saying about a MAC.
type claim struct {
	*entry
	netboot bool
	arch    string
}

// index finds objects by MAC.
type index struct {
	mu     sync.RWMutex
	macs   map[[6]byte][]claim // in the order of the objects' names; mostly one
	number int                 // of objects
	change uint64              // counts changes
	synced int                 // namespaces that were read once

	remember  sync.Mutex
	answers   map[[6]byte]string // the closest MAC of unknown ones
	answersOf uint64             // the change that they hold for
	searches  *rate.Limiter
}

func newIndex() *index {
	return &index{
		macs: map[[6]byte][]claim{}, answers: map[[6]byte]string{},
		searches: rate.NewLimiter(searchesPerSecond, searchesAtOnce),
	}
}

func (x *index) put(e *entry) {
	for _, p := range e.ports {
		at, _ := slices.BinarySearchFunc(x.macs[p.mac], e.full, func(c claim, name string) int {
			return strings.Compare(c.full, name)
		})
		x.macs[p.mac] = slices.Insert(x.macs[p.mac], at, claim{e, p.netboot, p.arch})
	}
	x.number++
	x.change++
}

func (x *index) remove(e *entry) {
	for _, p := range e.ports {
		left := slices.DeleteFunc(x.macs[p.mac], func(c claim) bool { return c.entry == e })
		if len(left) == 0 {
			delete(x.macs, p.mac)
		} else {
			x.macs[p.mac] = left
		}
	}
	x.number--
	x.change++
}

// objects is how many there are.
func (x *index) objects() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.number
}

// of returns the object that has a MAC; the first by name where several have it.
func (x *index) of(mac [6]byte) (claim, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	claims := x.macs[mac]
	if len(claims) == 0 {
		return claim{}, false
	}
	return claims[0], true
}

// also names another object that has a MAC; nothing where there is none.
func (x *index) also(mac [6]byte) string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if claims := x.macs[mac]; len(claims) > 1 {
		return claims[1].full
	}
	return ""
}

// bootable calls found for each MAC that may boot from the network, with its object.
func (x *index) bootable(found func(mac [6]byte, full string)) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for mac, claims := range x.macs {
		if claims[0].netboot {
			found(mac, claims[0].full)
		}
	}
}

// ofText is of for a MAC as text.
func (x *index) ofText(mac string) (claim, bool) {
	parsed, err := net.ParseMAC(mac)
	if err != nil || len(parsed) != 6 {
		return claim{}, false
	}
	return x.of([6]byte(parsed))
}

// lookup tells what is known of a MAC. Before all namespaces were read, nothing can be said of a MAC that is not there.
func (x *index) lookup(mac [6]byte, namespaces int) (journal.Hardware, bool) {
	if c, ok := x.of(mac); ok {
		return journal.Hardware{Known: true, Name: c.full, Netboot: c.netboot, Arch: c.arch, Also: x.also(mac)}, true
	}
	x.mu.RLock()
	complete := x.synced >= namespaces
	x.mu.RUnlock()
	if !complete {
		return journal.Hardware{}, false
	}
	return journal.Hardware{Closest: x.closest(mac)}, true
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
	if best, ok := nearest(mac, x.macs); ok {
		text = fmt.Sprintf("%s (%s)", net.HardwareAddr(best[:]), x.macs[best][0].full)
	}
	x.answers[mac] = text
	return text
}

// part is the index's share of one namespace: what the reflector of client-go writes to.
type part struct {
	*index
	entries  map[string]*entry // by name
	synced   bool
	replaced func() // all were read
	changed  func() // the index was changed
	left     func() // there was no room for an object
}

var (
	_ cache.ReflectorStore    = (*part)(nil)
	_ cache.TransformingStore = (*part)(nil)
)

// Transformer implements cache.TransformingStore: the reflector keeps a first list aside until it has all of it.
func (p *part) Transformer() cache.TransformFunc { return trim }

// Add implements cache.ReflectorStore.
func (p *part) Add(given any) error { return p.Update(given) }

// Update implements cache.ReflectorStore.
func (p *part) Update(given any) error {
	defer p.changed()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.update(given)
}

func (p *part) update(given any) error {
	kept, err := trim(given)
	o, ok := kept.(*object)
	if err != nil || !ok {
		return err
	}
	if before, ok := p.entries[o.Name]; ok {
		p.remove(before)
	} else if len(p.entries) >= maxObjects {
		p.left()
		return nil
	}
	e := &entry{namespace: o.Namespace, name: o.Name, full: o.Namespace + "/" + o.Name, uid: o.UID}
	for _, i := range o.Spec.Interfaces {
		mac, err := net.ParseMAC(i.DHCP.MAC)
		if err != nil {
			return err
		}
		own := port{mac: [6]byte(mac), netboot: i.Netboot.AllowPXE, arch: i.DHCP.Arch}
		if !slices.ContainsFunc(e.ports, func(p port) bool { return p.mac == own.mac }) {
			e.ports = append(e.ports, own)
		}
	}
	p.entries[o.Name] = e
	p.put(e)
	return nil
}

// Delete implements cache.ReflectorStore.
func (p *part) Delete(given any) error {
	defer p.changed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if o, ok := given.(*object); ok {
		if before, ok := p.entries[o.Name]; ok {
			p.remove(before)
			delete(p.entries, o.Name)
		}
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (p *part) Replace(all []any, _ string) error {
	if err := p.replace(all); err != nil {
		return err
	}
	p.changed()
	p.replaced()
	return nil
}

func (p *part) replace(all []any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		p.remove(e)
	}
	clear(p.entries)
	for _, each := range all {
		if err := p.update(each); err != nil {
			return err
		}
	}
	if !p.synced {
		p.synced = true
		p.index.synced++
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (p *part) Resync() error { return nil }
