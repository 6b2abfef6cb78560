package page

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
)

const (
	// gather is how long changes are gathered before they are shown.
	gather = 250 * time.Millisecond
	// restFactor is how many times as long as making a snapshot took the next one is put off, at most by maxRest.
	restFactor = 5
	maxRest    = 300 * time.Millisecond
	// resolveEvery is how often the replicas are looked up while somebody looks.
	resolveEvery = 5 * time.Second
	// linger is how long the other replicas are followed after somebody looked last.
	linger = 30 * time.Second
)

// Unanswered is a replica whose machines are not shown.
type Unanswered struct {
	Replica string `json:"replica"`       // its address, or the name that could not be looked up
	Pod     string `json:"pod,omitempty"` // its name, where it has told it before
	Reason  string `json:"reason"`
}

// fleet is the machines of all replicas. Its streams from the other replicas last while somebody looks.
type fleet struct {
	options  *Options
	instance string // of this process, so that it recognizes itself

	making sync.Mutex // one snapshot at a time

	mu       sync.Mutex
	last     map[bool]*snapshot // by whether it is of this replica's machines only
	looked   map[bool]time.Time // when somebody looked last, by the same
	wake     chan struct{}
	replicas map[netip.AddrPort]*replica
	resolved bool
	fault    error         // of the last look-up
	news     chan struct{} // closed and made anew when a replica's machines change
}

func newFleet(o *Options, instance string) *fleet {
	return &fleet{
		options: o, instance: instance, last: map[bool]*snapshot{}, looked: map[bool]time.Time{},
		wake: make(chan struct{}, 1), replicas: map[netip.AddrPort]*replica{}, news: make(chan struct{}),
	}
}

// snapshot is all machines now: at most as old as changes are gathered for. With own, it is this replica's only.
func (f *fleet) snapshot(ctx context.Context, own bool) *snapshot {
	own = own || f.options.Replicas == nil
	f.look(own)
	if !own {
		f.await(ctx)
	}
	f.making.Lock()
	defer f.making.Unlock()
	f.mu.Lock()
	older := f.last[own]
	f.mu.Unlock()
	begin := time.Now()
	if older != nil && begin.Sub(older.taken) < max(gather/2, min(restFactor*older.cost, maxRest)) {
		return older
	}
	machines := f.options.Journal.Machines()
	for i := range machines {
		machines[i] = brief(machines[i])
		if machines[i].Pod == "" {
			machines[i].Pod = f.options.Pod
		}
	}
	parts := [][]journal.MachineView{machines}
	var unanswered []Unanswered
	if !own {
		others, missing := f.others()
		parts, unanswered = append(parts, others...), missing
	}
	s := newSnapshot(join(parts), older)
	s.unanswered, s.pods, s.taken, s.cost = unanswered, len(parts), begin, time.Since(begin)
	f.mu.Lock()
	f.last[own] = s
	f.mu.Unlock()
	return s
}

// machine is all that is known of a machine.
func (f *fleet) machine(ctx context.Context, id string, own bool) (journal.MachineView, []Unanswered, bool) {
	f.look(own)
	m, found := f.options.Journal.Machine(id)
	if found {
		m = cleaned(m)
		if m.Pod == "" {
			m.Pod = f.options.Pod
		}
	}
	if own || f.options.Replicas == nil {
		return m, nil, found
	}
	f.await(ctx)
	_, unanswered := f.others()
	var wg sync.WaitGroup
	var mu sync.Mutex
	address := m.Address
	for _, r := range f.holding(id, address) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			other, err := r.machine(ctx)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				unanswered = append(unanswered, Unanswered{r.replica.address.String(), r.pod, err.Error()})
			case found:
				m = joinMachine(m, other)
			default:
				m, found = other, true
			}
		}()
	}
	wg.Wait()
	return m, unanswered, found
}

// look notes that somebody looks. Whoever looks at this replica's machines only, as other replicas do, does not have
// them followed: replicas that follow each other would else do so for ever.
func (f *fleet) look(own bool) {
	f.mu.Lock()
	f.looked[own || f.options.Replicas == nil] = time.Now()
	f.mu.Unlock()
}

// idle forgets snapshots, which are as large as the journal, that nobody has looked at for long, and tells whether the
// other replicas need not be followed.
func (f *fleet) idle(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for own := range f.last {
		if now.Sub(f.looked[own]) > linger {
			delete(f.last, own)
		}
	}
	return now.Sub(f.looked[false]) > linger
}

// await has the other replicas followed, and waits until each has answered or failed, or the time for it is over.
func (f *fleet) await(ctx context.Context) {
	select {
	case f.wake <- struct{}{}:
	default:
	}
	timer := time.NewTimer(f.options.ReplicaTimeout)
	defer timer.Stop()
	for {
		f.mu.Lock()
		settled, news := f.resolved, f.news
		for _, r := range f.replicas {
			settled = settled && r.settled
		}
		f.mu.Unlock()
		if settled {
			return
		}
		select {
		case <-news:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// others are the machines of the replicas that have answered, and the replicas that have not.
func (f *fleet) others() (machines [][]journal.MachineView, unanswered []Unanswered) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.fault != nil:
		unanswered = append(unanswered, Unanswered{Replica: "all others", Reason: f.fault.Error()})
	case !f.resolved:
		unanswered = append(unanswered, Unanswered{Replica: "all others", Reason: "they have not been found yet"})
	}
	for _, r := range f.sorted() {
		switch {
		case r.self:
		case !r.ready:
			reason := "no answer within " + f.options.ReplicaTimeout.String()
			if r.fault != nil {
				reason = r.fault.Error()
			}
			unanswered = append(unanswered, Unanswered{r.address.String(), r.pod, Clean(reason, textLength)})
		default:
			heard := make([]journal.MachineView, 0, len(r.machines))
			for _, m := range r.machines {
				heard = append(heard, m)
			}
			machines = append(machines, heard)
		}
	}
	return machines, unanswered
}

// sorted are the replicas in the order of their addresses. The caller holds the lock.
func (f *fleet) sorted() []*replica {
	all := make([]*replica, 0, len(f.replicas))
	for _, r := range f.replicas {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *replica) int { return a.address.Compare(b.address) })
	return all
}

// holder is a replica that knows a machine, and by which ID.
type holder struct {
	*replica
	id  string
	pod string
}

// holding are the replicas that know a machine by its ID, another MAC of it, or its address only.
func (f *fleet) holding(id string, address netip.Addr) []holder {
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []holder
	for _, r := range f.sorted() {
		for theirs, m := range r.machines {
			if theirs == id || slices.Contains(m.OtherMACs, id) || m.MAC == "" && address.IsValid() && m.Address == address {
				found = append(found, holder{r, theirs, r.pod})
				if m.Address.IsValid() && !address.IsValid() {
					address = m.Address
				}
			}
		}
	}
	return found
}

// change sets what is known of a replica, and tells whoever waits.
func (f *fleet) change(set func()) {
	f.mu.Lock()
	set()
	close(f.news)
	f.news = make(chan struct{})
	f.mu.Unlock()
}

// changed is closed when a replica's machines change.
func (f *fleet) changed() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.news
}

// run follows the other replicas while somebody looks, until ctx is done.
func (f *fleet) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ticker := time.NewTicker(resolveEvery)
	defer ticker.Stop()
	cancels := map[netip.AddrPort]context.CancelFunc{}
	for {
		asked := true
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-ticker.C:
			asked = false
		}
		idle := f.idle(time.Now())
		f.mu.Lock()
		resolved := f.resolved
		f.mu.Unlock()
		switch {
		case f.options.Replicas == nil, idle && !resolved, asked && resolved:
			continue
		case idle:
			for _, cancel := range cancels {
				cancel()
			}
			clear(cancels)
			f.change(func() { clear(f.replicas); f.resolved, f.fault = false, nil })
			continue
		}
		f.resolve(ctx, cancels, &wg)
	}
}

// resolve looks the replicas up, and follows new ones and no longer those that are gone.
func (f *fleet) resolve(ctx context.Context, cancels map[netip.AddrPort]context.CancelFunc, wg *sync.WaitGroup) {
	lookupCtx, cancel := context.WithTimeout(ctx, f.options.ReplicaTimeout)
	found, err := f.options.Replicas(lookupCtx)
	cancel()
	if err != nil {
		f.options.Logger.Debug("failed to find replicas", "error", err)
		f.change(func() { f.resolved, f.fault = true, err })
		return
	}
	f.change(func() {
		f.resolved, f.fault = true, nil
		for address := range f.replicas {
			if !slices.Contains(found, address) {
				cancels[address]()
				delete(cancels, address)
				delete(f.replicas, address)
			}
		}
		for _, address := range found {
			if f.replicas[address] != nil {
				continue
			}
			r := &replica{fleet: f, address: address}
			f.replicas[address] = r
			var followCtx context.Context
			followCtx, cancels[address] = context.WithCancel(ctx)
			wg.Add(1)
			go func() {
				defer wg.Done()
				r.follow(followCtx)
			}()
		}
	})
}
