package loader

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
)

const (
	// A loader is served for trustFor after it was compared with the server's, which a request has done again after
	// checkEvery: nobody asks the server while no machine boots.
	trustFor, checkEvery = time.Minute, 20 * time.Second
	// checkSoon is the same for what is not served, and has been; absentFor for what the server does not have.
	checkSoon, absentFor = 5 * time.Second, time.Minute
	// chainFor is for how long a machine gets the loader with which it began: firmware asks for a file's size, makes
	// room, and then asks for the file.
	chainFor = time.Minute
	// strikes is how many comparisons in a row have to fail before a loader is not served any more.
	strikes = 2
	// mostNames is how many names are known, and mostBytes how long all loaders may be together. A name that is not known
	// is looked up each newEvery: machines can invent names.
	mostNames = 64
	mostBytes = 16 << 20
	newEvery  = 100 * time.Millisecond
	// afterFailures of a name that was never kept, it is looked up as seldom as one that is not there.
	afterFailures = 4
	// warmFor is for how long after the start, first after warmAfter and then each warmEvery, Smee's own names are looked
	// up before machines ask: a rack that powers on would be over before they have been compared.
	warmFor, warmAfter, warmEvery = time.Minute, 200 * time.Millisecond, 2 * time.Second
	// linesPerHour is how many lines of each message are logged.
	linesPerHour = 16
	// mostMachines is how many are remembered for chainFor.
	mostMachines = 4096
)

// smees are the names that Smee has, of all releases. Any other name is kept as well, once a machine asks for it.
var smees = []string{"undionly.kpxe", "ipxe.efi", "snp.efi", "snp-x86_64.efi", "snp-arm64.efi"}

// Config makes a [Keeper].
type Config struct {
	// At is the port and the path by which the server has its loaders by HTTP: ":7171/ipxe/". Empty keeps none.
	At string
	// Pick chooses an endpoint for a client. It must not block.
	Pick func(client netip.Addr) (netip.AddrPort, error)
	// Logger may be nil.
	Logger *slog.Logger

	fetch func(ctx context.Context, at, name string, known *Loader) (*Loader, finding, error) // of tests
}

// Keeper keeps loaders.
type Keeper struct {
	log    *loglimit.Limiter
	fetch  func(ctx context.Context, at, name string, known *Loader) (*Loader, finding, error)
	wanted chan string

	mu      sync.Mutex
	at      string
	names   map[string]*entry
	bytes   int64     // of the loaders that are kept
	newName time.Time // when a name was taken that was not known
	began   map[machine]beginning
}

// entry is what is known of a name.
type entry struct {
	name     string
	loader   *Loader // of the last comparison that succeeded; nil is none
	previous *Loader // of before, for the machines that began with it
	answer   Answer
	asked    bool // for by a machine
	queued   bool
	checked  time.Time
	failed   int // comparisons, one after the other
}

// machine is a machine that has asked for a name.
type machine struct {
	client netip.Addr
	name   string
}

// beginning is what it began with.
type beginning struct {
	loader *Loader
	at     time.Time
}

// New makes a keeper, whose Run does the comparisons.
func New(c Config) *Keeper {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.fetch == nil {
		c.fetch = fetcher{c.Pick}.fetch
	}
	return &Keeper{
		log: loglimit.New(c.Logger, linesPerHour, time.Hour), fetch: c.fetch, wanted: make(chan string, mostNames),
		at: c.At, names: map[string]*entry{}, began: map[machine]beginning{},
	}
}

// Set changes where the server has its loaders; empty keeps none. What is being served is served on.
func (k *Keeper) Set(at string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at == at {
		return
	}
	k.at, k.bytes = at, 0
	clear(k.names)
	clear(k.began)
}

// On reports whether loaders are kept.
func (k *Keeper) On() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.at != ""
}

// Find finds a loader for a client, or says why the server has to be asked. It does not wait, and does not keep the
// name, which may be a view of a datagram.
func (k *Keeper) Find(client netip.Addr, name string, now time.Time) (*Loader, Answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.entry(name, now)
	if e == nil {
		return nil, Full
	}
	e.asked = true
	k.queue(e, now)
	age := now.Sub(e.checked)
	m := machine{client, e.name}
	b, known := k.began[m]
	if known = known && now.Sub(b.at) < chainFor && (b.loader == e.loader || b.loader == e.previous); known {
		return b.loader, Memory
	}
	switch {
	case e.answer != Memory:
		return nil, e.answer
	case age >= trustFor:
		return nil, Checking
	}
	if len(k.began) >= mostMachines {
		clear(k.began)
	}
	k.began[m] = beginning{e.loader, now}
	return e.loader, Memory
}

// queue has a name looked up if that is due. The caller has mu.
func (k *Keeper) queue(e *entry, now time.Time) {
	if now.Sub(e.checked) < e.pause() || e.queued {
		return
	}
	select {
	case k.wanted <- e.name:
		e.queued = true
	default:
	}
}

// warm looks up Smee's names which have not been yet.
func (k *Keeper) warm(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at == "" {
		return
	}
	for _, name := range smees {
		e := k.names[name]
		if e == nil {
			e = &entry{name: name, answer: Checking}
			k.names[name] = e
		}
		if e.loader == nil {
			k.queue(e, now)
		}
	}
}

// entry is what is known of a name; nil where there are too many. The caller has mu.
func (k *Keeper) entry(name string, now time.Time) *entry {
	if e := k.names[name]; e != nil {
		return e
	}
	if now.Sub(k.newName) < newEvery {
		return nil
	}
	if len(k.names) >= mostNames && !k.forgetOne(now) {
		return nil
	}
	k.newName = now
	e := &entry{name: strings.Clone(name), answer: Checking}
	k.names[e.name] = e
	return e
}

// forgetOne makes room for a name. The caller has mu.
func (k *Keeper) forgetOne(now time.Time) bool {
	for name, e := range k.names {
		if e.loader == nil && !e.queued && now.Sub(e.checked) >= checkEvery {
			delete(k.names, name)
			return true
		}
	}
	return false
}

// pause is after which time a name is looked up again.
func (e *entry) pause() time.Duration {
	switch {
	case e.loader == nil && (e.answer == Absent || e.failed >= afterFailures):
		return absentFor
	case e.answer == Memory && e.failed == 0:
		return checkEvery
	}
	return checkSoon
}

// Run compares what is asked for with the server's, one name after the other, until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	warming, until := time.NewTicker(warmAfter), time.Now().Add(warmFor)
	defer warming.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-warming.C:
			k.warm(now)
			warming.Reset(warmEvery)
			if now.After(until) {
				warming.Stop()
			}
		case name := <-k.wanted:
			k.check(ctx, name)
		}
	}
}

func (k *Keeper) check(ctx context.Context, name string) {
	k.mu.Lock()
	at, e := k.at, k.names[name]
	if at == "" || e == nil {
		k.mu.Unlock()
		return
	}
	known := e.loader
	k.mu.Unlock()
	found, what, err := k.fetch(ctx, at, name, known)
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at != at || k.names[name] != e {
		return
	}
	before := e.answer
	k.settle(e, found, what)
	e.queued, e.checked = false, time.Now()
	k.tell(e, before, what, err)
}

// settle takes what a comparison has found. The caller has mu.
func (k *Keeper) settle(e *entry, found *Loader, what finding) {
	if what == alike {
		e.failed = 0
		switch {
		case found.same(e.loader):
			e.answer = Memory
		case k.bytes-e.loader.Size()+found.Size() > mostBytes:
			k.forget(e)
			e.answer = Full
		case e.loader == nil:
			k.bytes += found.Size()
			e.loader, e.answer = found, Memory
		default: // served when the next comparison finds it as well: two servers may take turns
			k.bytes += found.Size() - e.loader.Size()
			e.loader, e.previous, e.answer = found, e.loader, Changed
			k.forgetBeginnings(e)
		}
		return
	}
	e.failed++
	if e.loader == nil {
		e.answer = what.answer()
		return
	}
	if what == silent || e.failed < strikes {
		return
	}
	e.answer = what.answer()
	if what == missing {
		k.forget(e)
	}
}

// forget gives a loader up. The caller has mu.
func (k *Keeper) forget(e *entry) {
	k.bytes -= e.loader.Size()
	e.loader, e.previous = nil, nil
	k.forgetBeginnings(e)
}

// forgetBeginnings forgets the machines that began with what is not kept any more. The caller has mu.
func (k *Keeper) forgetBeginnings(e *entry) {
	for m, b := range k.began {
		if m.name == e.name && b.loader != e.loader && b.loader != e.previous {
			delete(k.began, m)
		}
	}
}

// tell logs what has changed for those who ask for a name. The caller has mu.
func (k *Keeper) tell(e *entry, before Answer, what finding, err error) {
	switch {
	case e.answer == Memory && what == silent:
		k.log.Warn("loader not compared", func() []any { return []any{"loader", e.loader.String(), "error", err} })
	case e.answer == before, e.answer != Memory && !e.asked:
	case e.answer == Memory:
		k.log.LogAt(time.Now().UnixNano(), slog.LevelInfo, "loader kept", func() []any {
			return []any{"loader", e.loader.String(), "bytes", e.loader.Size()}
		})
	case e.answer != Absent || before == Memory:
		k.log.Warn("loader not kept", func() []any {
			return []any{"file", e.name, "reason", e.answer.String(), "error", err}
		})
	}
}
