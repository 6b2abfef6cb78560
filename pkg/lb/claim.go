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
	"github.com/tinkerbell/stack/pkg/lb/announce"
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

// delay is how long this node leaves the free address to others.
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
	link := v.link
	v.mu.Unlock()
	v.c.metrics.consented.WithLabelValues(v.ip.String()).Set(boolean(g.Consented))
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
		err = v.probe(ctx, link, port)
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
// lease, was the one station that answered the last question, a moment ago, and no other was about to claim it since.
func (v *vip) free(from string) bool {
	interval := v.interval()
	v.mu.Lock()
	defer v.mu.Unlock()
	return from != "" && len(v.owners) == 1 && isAmong(v.owners[0], from) &&
		time.Since(v.asked) < 2*interval+probe.WatchWait && v.strange.Before(v.asked)
}

// isAmong reports whether a station is one of those that a node has written.
func isAmong(mac frame.MAC, stations string) bool {
	return slices.Contains(strings.Split(stations, ","), hardware(mac))
}

// probe asks the link whether somebody has the address, or is about to claim it.
func (v *vip) probe(ctx context.Context, link address.Link, port Port) error {
	own := func(mac frame.MAC) bool { return isAmong(mac, link.Stations) }
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
	announcer := v.announce(link, port)
	v.mu.Lock()
	v.announcer = announcer
	v.mu.Unlock()
	v.log.Info("announcing address", "link", link.Name, "mac", link.MAC.String())
	return nil
}

// claim begins to have the address.
func (v *vip) claim(link address.Link, port Port) {
	announcer := v.announce(link, port)
	v.mu.Lock()
	v.held, v.since, v.silent, v.contested, v.announcer, v.unheard = true, time.Now(), 0, 0, announcer, false
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
func (v *vip) announce(link address.Link, port Port) *announce.Announcer {
	v.holding = link
	announcer := announce.New(port.Announce, v.granted, func(err error) {
		if err != nil {
			v.log.Warn("failed to announce an address", "link", link.Name, "error", err)
		}
	}, v.c.o.AnnounceInterval)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		announcer.Run(ctx)
	}()
	v.stopSending = func() {
		stop()
		<-done
		// The kernel waits for all its receivers before it closes a packet socket, and the next owner for us.
		v.closing.Go(func() { _ = port.Close() })
	}
	return announcer
}

// granted reports whether the grant lasts: a process that has stood still since does not know yet that the address is
// another node's.
func (v *vip) granted() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return time.Now().Before(v.end)
}
