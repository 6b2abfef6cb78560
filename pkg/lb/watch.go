package lb

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/probe"
)

// silentRounds is how many questions in a row nobody answers until a lease counts as held without serving.
const silentRounds = 3

// A node that has an address which another station answers for as well steps back after some questions: the one with
// the higher Ethernet address sooner, since the other may be a stack-lb of another cluster and goes by the same rule;
// and the lower one where that station does not.
const (
	contestedRounds = 3
	stubbornRounds  = 10
)

// watch asks the link for the address all the time, on whatever link it belongs at the moment.
func (v *vip) watch(ctx context.Context) {
	ticker := time.NewTicker(v.c.o.ProbeInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		v.mu.Lock()
		wish := v.wish
		v.mu.Unlock()
		link, err := v.c.o.Host.Find(v.ip, wish.Interface)
		if err == nil {
			v.watchLink(ctx, link)
			continue // the link has changed, or failed
		}
		v.saw(probe.Round{Asked: time.Now(), Err: err})
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// watchLink asks on one link until it is another one's turn, or it fails.
func (v *vip) watchLink(ctx context.Context, link address.Link) {
	port, err := v.c.o.Host.Open(link, v.ip)
	if err != nil {
		v.warn(link, "failed to open a link", err)
		v.hasLooked()
		wait(ctx, v.c.o.ProbeInterval)
		return
	}
	defer port.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	failures := 0
	saw := func(r probe.Round) {
		if r.Err != nil {
			failures++
		} else {
			failures = 0
		}
		v.saw(r)
		v.doubt(ctx, link)
		v.mu.Lock()
		wish := v.wish
		v.mu.Unlock()
		now, err := v.c.o.Host.Find(v.ip, wish.Interface)
		if failures > 1 || err != nil || !now.Is(link) || now.Source != link.Source {
			stop()
		}
	}
	probe.Watch(ctx, port, probe.Watcher{
		Turn: func() { v.turn(ctx) }, Interval: v.interval, Saw: saw, Heard: v.heard,
	})
}

// Questions that a node asks in Options.ProbeInterval, for all addresses together: where it has the address, or writes
// the status of Services, which tells people of what is wrong; and for others, of which every node asks. questionBurst
// is how many may come at once. Switches that inspect ARP shut a port after 15 a second.
const (
	dutifulRate   = 10
	idleRate      = 2
	questionBurst = 4
)

// turn waits until this node may ask.
func (v *vip) turn(ctx context.Context) {
	now := time.Now()
	late := v.c.questions.ReserveN(now, 1).DelayFrom(now)
	if late > v.c.o.ProbeInterval { // it is no reason not to claim the address
		v.hasLooked()
	}
	wait(ctx, late)
}

// interval is the time between two questions for the address: the least where what was heard last is not as the lease
// has it.
func (v *vip) interval() time.Duration {
	lease := v.elector.Holder()
	v.mu.Lock()
	defer v.mu.Unlock()
	taken := lease.Identity != "" && !lease.Expired
	asHeld := len(v.owners) == 1 && isAmong(v.owners[0], lease.Stations)
	if v.held && (v.alone || len(v.owners) > 0 || lease.Doubt != v.judged) ||
		!v.held && (len(v.conflict) > 0 || taken && !asHeld) {
		return v.c.o.ProbeInterval
	}
	return v.usual()
}

// usual is the time between two questions where all is well. The caller holds mu.
func (v *vip) usual() time.Duration {
	rate := idleRate
	if v.held || v.c.writes.Load() {
		rate = dutifulRate
	}
	return max(v.c.o.ProbeInterval, v.c.o.ProbeInterval*time.Duration(v.c.addresses.Load())/time.Duration(rate))
}

// maxStrangers is how many are remembered, more than one node has cards.
const maxStrangers = 32

// heard is told of what stations say without being asked: where this node has the address, it says so, too.
func (v *vip) heard(h probe.Heard) {
	holders := v.elector.Holder().Stations
	v.mu.Lock()
	defer v.mu.Unlock()
	if isAmong(h.MAC, v.link.Stations) {
		return
	}
	v.spoken = time.Now()
	if h.Kind == probe.Claim {
		v.dispute(1)
	}
	if _, known := v.strangers[h.MAC]; !isAmong(h.MAC, holders) && (known || len(v.strangers) < maxStrangers) {
		v.strangers[h.MAC] = v.spoken
	}
	if v.announcer != nil && h.Kind == probe.Claim && !v.alone {
		v.announcer.defend()
	}
}

// others are the stations of a round that are not this node's, and one for all of the lease's holder.
func others(owners []frame.MAC, mine, holders string) []frame.MAC {
	first := true
	return slices.DeleteFunc(owners, func(mac frame.MAC) bool {
		holds := isAmong(mac, holders)
		if holds && first {
			first = false
			return isAmong(mac, mine)
		}
		return holds || isAmong(mac, mine)
	})
}

// saw judges one round: who answered for the address, this node not among them.
func (v *vip) saw(r probe.Round) {
	lease := v.elector.Holder()
	holder, expired, blind := lease.Identity, lease.Expired, r.Err != nil
	v.mu.Lock()
	held, before := v.held, v.owners
	owners := others(r.Owners, v.link.Stations, lease.Stations)
	if len(owners) == 1 && isAmong(owners[0], lease.Stations) {
		v.sole = r.Asked
	} else if len(owners) > 0 {
		v.sole = time.Time{}
	}
	maps.DeleteFunc(v.strangers, func(_ frame.MAC, at time.Time) bool { return at.Before(r.Asked) })
	if v.owners, v.asked = owners, r.Asked; len(owners) > 0 && !held {
		v.unheard = false
	}
	if !blind && len(owners) == 0 {
		v.contested = 0
	}
	v.dispute(len(owners))
	if !blind && !slices.ContainsFunc(v.conflict, func(mac frame.MAC) bool { return slices.Contains(owners, mac) }) {
		v.conflict = nil
	}
	if len(owners) == 0 && !held && holder != "" && !expired && !blind {
		if v.silent++; v.silent == 1 {
			v.silentAt = v.asked
		}
	} else {
		v.silent = 0
	}
	silent := v.silent >= silentRounds
	// A station that answered before this node had the address is none too many.
	settled := held && time.Since(v.since) > 2*probe.WatchWait
	if settled && len(owners) > 0 {
		v.contested++
		yields := probe.Before(owners[0], frame.MAC(v.link.MAC))
		if v.contested >= stubbornRounds || yields && v.contested >= contestedRounds {
			v.conflict = owners
			v.elector.Poke()
		}
	}
	v.mu.Unlock()
	v.c.metrics.sees(v.ip, owners, held)
	v.c.metrics.notServing.WithLabelValues(v.ip.String()).Set(boolean(silent))
	now := time.Since(v.c.began).Nanoseconds()
	if n := len(owners); n > 1 || n > 0 && settled {
		v.c.logLimiter.WarnAt(now, "two owners of an address", func() []any {
			macs := make([]string, 0, n)
			for _, mac := range owners {
				macs = append(macs, hardware(mac))
			}
			return []any{"address", v.ip.String(), "macs", macs, "held_here", held, "holder", holder}
		})
	}
	if silent {
		v.c.logLimiter.WarnAt(now, "lease is held and nobody answers", func() []any {
			return []any{"address", v.ip.String(), "holder", holder}
		})
	}
	if len(owners) == 0 && len(before) > 0 && !held {
		v.elector.Poke() // whoever had the address has it no longer
	}
	v.cutStale(holder)
	v.hasLooked()
}

// cutStale ends connections that were left open when the address went: their clients are another node's now.
func (v *vip) cutStale(holder string) {
	if holder != "" && holder != v.c.o.Identity && v.stale.Swap(false) {
		v.c.forward.Cut(v.ip)
	}
}

// hasLooked lets this node be a candidate. One that has heard nobody yet would have to ask before it claims an
// address that is handed over, and so is not to be faster than the others.
func (v *vip) hasLooked() {
	v.mu.Lock()
	first := !v.looked
	v.looked = true
	v.mu.Unlock()
	if first {
		v.elector.Poke()
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
