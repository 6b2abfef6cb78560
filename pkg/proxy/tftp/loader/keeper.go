package loader

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
)

const (
	// A request has a loader that is kept compared with the server's after checkEvery: nobody asks the server while no
	// machine boots. checkSoon is the same after a failure, and absentFor for what the server does not have.
	checkEvery, checkSoon, absentFor = 20 * time.Second, 5 * time.Second, time.Minute
	// mostNames is how many names are known, and mostBytes how long all loaders may be together. A name that is not known
	// is looked up each newEvery: machines can invent names.
	mostNames = 64
	mostBytes = 16 << 20
	newEvery  = 100 * time.Millisecond
	// warmFor is for how long after the start, first after warmAfter and then each warmEvery, Smee's own names are looked
	// up before machines ask: a rack that powers on would be over before they have been read.
	warmFor, warmAfter, warmEvery = time.Minute, 200 * time.Millisecond, 2 * time.Second
	// linesPerHour is how many lines of each message are logged.
	linesPerHour = 16
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

	fetch func(ctx context.Context, at, name string, known *Loader) (*Loader, error) // of tests
}

// Keeper keeps loaders. What is kept is served at once, whatever the server does meanwhile.
type Keeper struct {
	log    *loglimit.Limiter
	fetch  func(ctx context.Context, at, name string, known *Loader) (*Loader, error)
	wanted chan string

	mu      sync.Mutex
	at      string
	names   map[string]*entry
	bytes   int64     // of the loaders that are kept
	newName time.Time // when a name was taken that was not known
}

// entry is what is known of a name.
type entry struct {
	name    string
	loader  *Loader // nil is none
	answer  Answer
	asked   bool // for by a machine
	queued  bool
	failed  bool // the last comparison did
	checked time.Time
}

// New makes a keeper, whose Run does the comparisons.
func New(c Config) *Keeper {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.fetch == nil {
		c.fetch = fetcher{c.Pick}.fetch
	}
	return &Keeper{
		log: loglimit.New(c.Logger, linesPerHour, time.Hour), fetch: c.fetch, wanted: make(chan string, mostNames),
		at: c.At, names: map[string]*entry{},
	}
}

// Set changes where the server has its loaders; empty keeps none. What is being served is served on.
func (k *Keeper) Set(at string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at != at {
		k.at, k.bytes = at, 0
		clear(k.names)
	}
}

// On reports whether loaders are kept.
func (k *Keeper) On() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.at != ""
}

// Find finds a loader, or says why the server has to be asked. It does not wait, and does not keep the name, which may
// be a view of a datagram.
func (k *Keeper) Find(name string, now time.Time) (*Loader, Answer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.entry(name, now)
	if e == nil {
		return nil, Full
	}
	e.asked = true
	k.queue(e, now)
	return e.loader, e.answer
}

// queue has a name looked up if that is due. The caller has mu.
func (k *Keeper) queue(e *entry, now time.Time) {
	pause := checkEvery
	switch {
	case e.answer == Absent:
		pause = absentFor
	case e.failed || e.loader == nil:
		pause = checkSoon
	}
	if now.Sub(e.checked) < pause || e.queued {
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
		if k.names[name] == nil {
			k.names[name] = &entry{name: name, answer: Checking}
		}
		if e := k.names[name]; e.loader == nil {
			k.queue(e, now)
		}
	}
}

// entry is what is known of a name; nil where there are too many. The caller has mu.
func (k *Keeper) entry(name string, now time.Time) *entry {
	if e := k.names[name]; e != nil {
		return e
	}
	if now.Sub(k.newName) < newEvery || len(k.names) >= mostNames && !k.forgetOne(now) {
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

// Run compares what is asked for with the server's, all names side by side, until ctx is done.
func (k *Keeper) Run(ctx context.Context) {
	var checks sync.WaitGroup
	defer checks.Wait()
	warming := time.NewTimer(warmAfter)
	defer warming.Stop()
	until := time.Now().Add(warmFor)
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-warming.C:
			k.warm(now)
			if now.Before(until) {
				warming.Reset(warmEvery)
			}
		case name := <-k.wanted:
			checks.Go(func() { k.check(ctx, name) })
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
	found, err := k.fetch(ctx, at, name, known)
	if ctx.Err() != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.at != at || k.names[name] != e {
		return
	}
	before := e.answer
	k.settle(e, found, err)
	e.queued, e.failed, e.checked = false, err != nil, time.Now()
	k.tell(e, known, before, err)
}

// settle takes what a comparison has found. The caller has mu.
func (k *Keeper) settle(e *entry, found *Loader, err error) {
	gone := e.loader.Size()
	switch {
	case errors.Is(err, errMissing):
		e.loader, e.answer = nil, Absent
	case errors.Is(err, errUnlike):
		e.loader, e.answer = nil, Differs
	case err != nil && e.loader == nil:
		e.answer = Unreachable
	case err != nil: // what is kept is served on
	case k.bytes-gone+found.Size() > mostBytes:
		e.loader, e.answer = nil, Full
	default:
		e.loader, e.answer = found, Memory
	}
	k.bytes += e.loader.Size() - gone
}

// tell logs what has changed for those who ask for a name. The caller has mu.
func (k *Keeper) tell(e *entry, known *Loader, before Answer, err error) {
	switch {
	case e.loader != nil && err != nil:
		k.log.Warn("loader not compared", func() []any { return []any{"loader", e.loader.String(), "error", err} })
	case e.loader != nil && !e.loader.same(known):
		k.log.LogAt(time.Now().UnixNano(), slog.LevelInfo, "loader kept", func() []any {
			return []any{"loader", e.loader.String(), "bytes", e.loader.Size()}
		})
	case e.answer == before || !e.asked || e.answer == Absent && before != Memory:
	default:
		k.log.Warn("loader not kept", func() []any {
			return []any{"file", e.name, "reason", e.answer.String(), "error", err}
		})
	}
}
