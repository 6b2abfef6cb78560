package hardware

import (
	"slices"
	"sync"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// maxObjects is how many objects of one kind and namespace are kept; more are left out, and counted.
const maxObjects = 50_000

// kept is what is kept of an object.
type kept[K comparable, E any] interface {
	comparable
	Keys() []K           // it is found by each of them
	Compare(other E) int // of several with one key the first counts
}

// table finds what is kept of the objects of one kind.
type table[K comparable, E kept[K, E]] struct {
	mu     sync.RWMutex
	found  map[K][]E // in their order; mostly one
	number int       // of objects
	change uint64    // counts changes
	synced int       // namespaces that were read once
}

func (t *table[K, E]) put(e E) {
	for _, key := range e.Keys() {
		at, _ := slices.BinarySearchFunc(t.found[key], e, E.Compare)
		t.found[key] = slices.Insert(t.found[key], at, e)
	}
	t.number++
	t.change++
}

func (t *table[K, E]) remove(e E) {
	for _, key := range e.Keys() {
		left := slices.DeleteFunc(t.found[key], func(other E) bool { return other == e })
		if len(left) == 0 {
			delete(t.found, key)
		} else {
			t.found[key] = left
		}
	}
	t.number--
	t.change++
}

// of is what was found first by a key, and second; nil where there is none.
func (t *table[K, E]) of(key K) (first, second E) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	all := t.found[key]
	if len(all) > 0 {
		first = all[0]
	}
	if len(all) > 1 {
		second = all[1]
	}
	return first, second
}

// objects is how many there are.
func (t *table[K, E]) objects() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.number
}

// complete reports whether so many namespaces were read: before, nothing can be said of what is not there.
func (t *table[K, E]) complete(namespaces int) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.synced >= namespaces
}

// part is a table's share of one namespace: what the reflector of client-go writes to.
type part[K comparable, E kept[K, E]] struct {
	*table[K, E]
	read     func(object any) E // what is to be kept; nil of another kind of object
	entries  map[string]E       // by name
	synced   bool
	replaced func() // all were read
	changed  func() // the table was changed
	left     func() // there was no room for an object
}

func newPart[K comparable, E kept[K, E]](t *table[K, E], read func(any) E) *part[K, E] {
	none := func() {}
	return &part[K, E]{table: t, read: read, entries: map[string]E{}, replaced: none, changed: none, left: none}
}

// Transformer implements cache.TransformingStore: the reflector keeps a first list aside until it has all of it.
func (p *part[K, E]) Transformer() cache.TransformFunc { return trim }

// Add implements cache.ReflectorStore.
func (p *part[K, E]) Add(given any) error { return p.Update(given) }

// Update implements cache.ReflectorStore.
func (p *part[K, E]) Update(given any) error {
	defer p.changed()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.update(given)
	return nil
}

func (p *part[K, E]) update(given any) {
	var none E
	e := p.read(given)
	if e == none {
		return
	}
	name := given.(meta.Object).GetName()
	if before, ok := p.entries[name]; ok {
		p.remove(before)
	} else if len(p.entries) >= maxObjects {
		p.left()
		return
	}
	p.entries[name] = e
	p.put(e)
}

// Delete implements cache.ReflectorStore.
func (p *part[K, E]) Delete(given any) error {
	defer p.changed()
	p.mu.Lock()
	defer p.mu.Unlock()
	if o, ok := given.(meta.Object); ok {
		if before, ok := p.entries[o.GetName()]; ok {
			p.remove(before)
			delete(p.entries, o.GetName())
		}
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (p *part[K, E]) Replace(all []any, _ string) error {
	defer p.replaced()
	defer p.changed()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.entries {
		p.remove(e)
	}
	clear(p.entries)
	for _, each := range all {
		p.update(each)
	}
	if !p.synced {
		p.synced = true
		p.table.synced++
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (p *part[K, E]) Resync() error { return nil }
