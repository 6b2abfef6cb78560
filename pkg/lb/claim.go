package lb

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/elect"
	"github.com/tinkerbell/stack/pkg/lb/probe"
	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// Times that a candidate leaves a free lease to others: up to spread, by the address and the node, so that addresses
// spread over the nodes; and longer where the node is about to go.
const (
	spread   = 100 * time.Millisecond
	cordoned = 2 * spread
)

// delay is how long this node leaves the address to others.
func (v *vip) delay() time.Duration {
	sum := sha256.Sum256([]byte(v.ip.String() + " " + v.c.o.Node))
	d := time.Duration(binary.BigEndian.Uint32(sum[:])) * spread >> 32
	v.mu.Lock()
	unheard := v.unheard
	v.mu.Unlock()
	if unheard || v.c.cordoned() {
		d += cordoned
	}
	return d
}

// readyFor is how long the address counts as one that nobody has after this node has probed for it, as long as it hears
// of no other station.
const readyFor = time.Second

// probed is a link on which nobody had the address, at a time.
type probed struct {
	link address.Link
	at   time.Time
}

// prepare probes for the address before the lease of another node runs out, so that it can be claimed then; the node
// with the shortest delay begins, and is the first.
func (v *vip) prepare(ctx context.Context) bool {
	link, wait := v.at(), v.delay()
	if wait >= spread {
		return false // another node's turn
	}
	port, err := v.c.o.Host.Open(link, v.ip)
	if err != nil {
		return false // it is tried again, and said, once the lease is here
	}
	defer v.closing.Go(func() { _ = port.Close() })
	own := func(mac frame.MAC) bool { return isAmong(mac, link.Stations) }
	at, first := probe.First(ctx, port, frame.MAC(link.MAC), own, wait)
	if first {
		v.mu.Lock()
		v.ready = probed{link, at}
		v.mu.Unlock()
	}
	return first
}

// renewed keeps the address on the link for as long as no other node can hold the lease.
func (v *vip) renewed(ctx context.Context, g elect.Grant) error {
	v.mu.Lock()
	link, alone := v.link, v.alone
	v.alone, v.disputed = g.Alone, v.disputed && g.Alone
	v.mu.Unlock()
	if v.c.metrics.alone.WithLabelValues(v.ip.String()).Set(boolean(g.Alone)); g.Alone && !alone {
		v.warn(link, "keeping an address without the API", elect.ErrDeadline)
	}
	if !g.First {
		err := v.put(link, g.Start)
		if err == nil && !link.Is(v.holding) {
			err = v.follow(link)
		}
		return err
	}
	port, err := v.c.o.Host.Open(link, v.ip)
	if err != nil {
		v.warn(link, "failed to open a link", err)
		return v.stepBack(reason.KernelRefused, err)
	}
	if !v.free(g.From) && !v.isReady(link) {
		err = v.probe(ctx, link, port, g.Former)
	}
	if err == nil {
		err = v.put(link, g.Start)
	}
	if err != nil {
		v.closing.Go(func() { _ = port.Close() })
		return err
	}
	v.claim(link, port)
	return nil
}

// isReady reports whether nobody had the address when this node probed for it a moment ago, and nobody was about to
// claim it since.
func (v *vip) isReady(link address.Link) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return link.Is(v.ready.link) && time.Since(v.ready.at) < readyFor && v.spoken.Before(v.ready.at)
}

// free reports whether the address may be claimed without a probe: its former holder has removed it and released the
// lease; the holder, this one or one before it, was the only station that has answered a question, a moment ago; and
// nobody but the former holder was about to claim it since.
func (v *vip) free(from string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for mac := range v.strangers {
		if !isAmong(mac, from) {
			return false
		}
	}
	return from != "" && time.Since(v.sole) < 2*v.usual()+probe.WatchWait
}

// isAmong reports whether a station is one of those that a node has written.
func isAmong(mac frame.MAC, stations string) bool {
	return slices.Contains(strings.Split(stations, ","), hardware(mac))
}

// undisputed reports whether no other station has had the address since this node has it without the API.
func (v *vip) undisputed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.disputed
}

// dispute notes how many other stations have the address. A node that has it without the API gives way at once: one of
// them may have taken the lease. The caller holds mu.
func (v *vip) dispute(others int) {
	if others > 0 && v.alone && !v.disputed {
		v.disputed = true
		v.elector.Poke()
	}
}

// serves reports whether the lease's holder answers for the address.
func (v *vip) serves(ctx context.Context) bool {
	port, err := v.c.o.Host.Open(v.at(), v.ip)
	if err != nil {
		return false // it is tried again, and said, once the lease is here
	}
	defer v.closing.Go(func() { _ = port.Close() })
	holders := v.elector.Holder().Stations
	others := func(mac frame.MAC) bool { return !isAmong(mac, holders) }
	return probe.Answered(ctx, []probe.Port{port}, func() {}, others)
}

// probe asks the link whether somebody has the address, or is about to claim it. The former holder may: it gives way.
func (v *vip) probe(ctx context.Context, link address.Link, port Port, former string) error {
	own := func(mac frame.MAC) bool { return isAmong(mac, link.Stations) || isAmong(mac, former) }
	by, err := probe.Conflict(ctx, port, frame.MAC(link.MAC), own)
	if err != nil {
		return v.stepBack(reason.LinkDown, err)
	}
	if by == nil {
		return nil
	}
	v.mu.Lock()
	v.conflict = []frame.MAC{*by}
	v.mu.Unlock()
	v.c.logLimiter.WarnAt(time.Since(v.c.began).Nanoseconds(), "address is in use", func() []any {
		return []any{"address", v.ip.String(), "link", link.Name, "mac", hardware(*by)}
	})
	return v.inUse(*by)
}

// put puts the address on the link, for what is left of a lease that was renewed at start.
func (v *vip) put(link address.Link, start time.Time) error {
	end := start.Add(v.c.o.Times.Hold())
	err := v.c.o.Host.Put(link, v.ip, end)
	switch {
	case err == nil:
		v.mu.Lock()
		v.end = end
		v.mu.Unlock()
		return nil
	case errors.Is(err, address.ErrTooLate):
		return reason.Errorf(reason.APIAway, "node %s: %v", v.c.o.Node, err)
	}
	v.warn(link, "failed to put an address on a link", err)
	return v.stepBack(reason.KernelRefused, err)
}

// follow announces the address anew where its link has another Ethernet address than before, as a bond has whose card
// has failed (fail_over_mac).
func (v *vip) follow(link address.Link) error {
	port, err := v.c.o.Host.Open(link, v.ip)
	if err != nil {
		v.warn(link, "failed to open a link", err)
		return v.stepBack(reason.KernelRefused, err)
	}
	v.stopSending()
	a := v.announce(link, port)
	v.mu.Lock()
	v.announcer = a
	v.mu.Unlock()
	v.log.Info("announcing address", "link", link.Name, "mac", link.MAC.String())
	return nil
}

// claim begins to have the address.
func (v *vip) claim(link address.Link, port Port) {
	a := v.announce(link, port)
	v.mu.Lock()
	v.held, v.since, v.silent, v.contested, v.announcer, v.unheard = true, time.Now(), 0, 0, a, false
	services := v.wish.Services
	v.mu.Unlock()
	v.c.metrics.holds(v.ip, true, reason.Announced)
	v.c.metrics.moves.WithLabelValues(v.ip.String(), "here").Inc()
	v.log.Info("announcing address", "link", link.Name, "mac", link.MAC.String())
	for _, s := range services {
		v.c.event(s, core.EventTypeNormal, reason.Announced, "announcing "+v.ip.String()+" from node "+v.c.o.Node+
			", link "+link.Name+", MAC "+link.MAC.String())
	}
}

// announce begins to announce the address.
func (v *vip) announce(link address.Link, port Port) *announcer {
	v.holding = link
	a := newAnnouncer(port.Announce, v.granted, func(err error) {
		if err != nil {
			v.log.Warn("failed to announce an address", "link", link.Name, "error", err)
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.run(ctx)
	}()
	v.stopSending = func() {
		stop()
		<-done
		// The kernel waits for all its receivers before it closes a packet socket, and the next owner for us.
		v.closing.Go(func() { _ = port.Close() })
	}
	return a
}

// granted reports whether the grant lasts: a process that has stood still since does not know yet that the address is
// another node's.
func (v *vip) granted() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Now().Before(v.end)
}
