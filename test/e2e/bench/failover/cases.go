package failover

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// Case is a way in which an address is lost, or might be.
type Case struct {
	Name string
	// fault happens to the node that has the address, or most of them.
	fault func(ctx context.Context, s *Site, owner *node) error
	// moves says that another node has the address afterwards.
	moves bool
	// atMost is how long the address may take to answer again after the fault until the case is over all the same.
	atMost time.Duration
	// Bound is the longest outage that echo requests may see, in seconds; 0 is none.
	Bound float64
	// few is how often it happens at most, where it takes long or always goes the same way; 0 is no bound.
	few int
	// shares says that two nodes may have the address for a moment.
	shares bool
	// measured says that what the balancers cost meanwhile is of interest.
	measured bool
}

// calm is how long the address has to answer without a break until a case is over.
const calm = 1500 * time.Millisecond

// Cases are the ways in which a node goes.
func Cases() []Case {
	leave := func(_ context.Context, _ *Site, n *node) error { return endLB(n) }
	killed := func(_ context.Context, _ *Site, n *node) error { n.lb.Kill(); return nil }
	stopped := func(_ context.Context, _ *Site, n *node) error { return n.lb.Signal(syscall.SIGSTOP) }
	cableOut := func(_ context.Context, _ *Site, n *node) error { return n.cable(false) }
	notReady := func(ctx context.Context, s *Site, n *node) error {
		pods := s.allReady()
		pods[n] = podNotReady
		return s.api.endpoints(ctx, pods)
	}
	const soon, later = 10 * time.Second, 20 * time.Second
	return []Case{
		{Name: "leave", fault: leave, moves: true, atMost: soon, Bound: 1},
		{Name: "drain", fault: drain, moves: true, atMost: soon, Bound: 1},
		{Name: "rolling-update", fault: update, atMost: soon, Bound: 1},
		{Name: "killed", fault: killed, moves: true, atMost: later, Bound: 7},
		{Name: "stopped", fault: stopped, moves: true, atMost: later, Bound: 7},
		{Name: "node-gone", fault: nodeGone, moves: true, atMost: later, Bound: 7},
		{Name: "cable-out", fault: cableOut, moves: true, atMost: later, Bound: 7},
		{Name: "pod-not-ready", fault: notReady, moves: true, atMost: soon, Bound: 2},
		{Name: "api-away", fault: apiAway(time.Minute), atMost: 30 * time.Second, few: 2},
		{Name: "switch-forgot", fault: forgetSwitch, atMost: 70 * time.Second, Bound: 60, few: 3},
	}
}

// Long is the API away for ten minutes.
func Long() Case {
	return Case{Name: "api-away-10m", fault: apiAway(10 * time.Minute), atMost: 30 * time.Second, few: 1}
}

// Steady is a case in which nothing happens for a time.
func Steady(long time.Duration) Case {
	nothing := func(ctx context.Context, _ *Site, _ *node) error { return sleep(ctx, long) }
	return Case{Name: "steady", fault: nothing, atMost: time.Minute, few: 1, measured: true}
}

// nodeGone takes a node off the link, and its balancer with it.
func nodeGone(_ context.Context, _ *Site, n *node) error {
	if err := n.cable(false); err != nil {
		return err
	}
	n.lb.Kill()
	return nil
}

// apiAway has nobody reach the API for a time.
func apiAway(long time.Duration) func(context.Context, *Site, *node) error {
	return func(ctx context.Context, s *Site, _ *node) error {
		if err := s.api.host.cable(false); err != nil {
			return err
		}
		return errors.Join(sleep(ctx, long), s.api.host.cable(true))
	}
}

func sleep(ctx context.Context, long time.Duration) error {
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// drain has the node's pod terminate: it serves what comes for some seconds more, then it is gone.
func drain(ctx context.Context, s *Site, n *node) error {
	pods := s.allReady()
	pods[n] = podDraining
	if err := s.api.endpoints(ctx, pods); err != nil {
		return err
	}
	if err := sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	delete(pods, n)
	return s.api.endpoints(ctx, pods)
}

// update starts stack-lb anew on one node after the other, that which has the address first, as a DaemonSet does.
func update(ctx context.Context, s *Site, owner *node) error {
	for _, n := range append([]*node{owner}, s.others(owner)...) {
		if err := endLB(n); err != nil {
			return err
		}
		if err := s.startLB(ctx, n); err != nil {
			return err
		}
		if err := s.ready(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// forgetSwitch has the client remember a wrong station for the address, as a router that has lost its way does. It
// does not find out by itself before minutes have passed.
func forgetSwitch(_ context.Context, s *Site, _ *node) error {
	err := s.client.sysctl("net/ipv4/neigh/"+link+"/base_reachable_time_ms", "600000")
	if err != nil {
		return err
	}
	own, err := s.client.links.LinkByName(link)
	if err != nil {
		return err
	}
	address, err := netlink.ParseAddr(VIP + "/32")
	if err != nil {
		return err
	}
	return s.client.links.NeighSet(&netlink.Neigh{
		LinkIndex: own.Attrs().Index, IP: address.IP, State: netlink.NUD_REACHABLE,
		HardwareAddr: []byte{2, 0, 0, 0, 0, 0x99},
	})
}

// Try lets a case happen once, and says what the client and the sampler saw.
func (s *Site) Try(ctx context.Context, c Case) (Try, error) {
	if err := s.restart(ctx); err != nil {
		return Try{}, err
	}
	owner, err := s.owner()
	if err != nil {
		return Try{}, err
	}
	from := time.Now()
	s.look.forget(from)
	var cost *Cost
	before, err := s.meter(ctx)
	if err != nil {
		return Try{}, err
	}
	if err := c.fault(ctx, s, owner); err != nil {
		return Try{}, fmt.Errorf("failed to stage %s: %w", c.Name, err)
	}
	if c.measured {
		if cost, err = s.cost(ctx, before); err != nil {
			return Try{}, err
		}
	}
	done := time.Now()
	for {
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return Try{}, err
		}
		calmFrom := time.Now().Add(-calm)
		over := calmFrom.After(done) && s.answers(calmFrom) && (!c.moves || s.sampler.Owners()[owner.name] == 0)
		if !over && time.Since(done) < c.atMost {
			continue
		}
		next := ""
		if n, err := s.owner(); err == nil {
			next = n.name
		}
		return Try{
			Case: c.Name, At: from.UTC(), Owner: owner.name, Next: next, Seen: s.look.Since(from),
			Wire: wireOf(s.sampler.Since(from)), MiB: s.peak(), Cost: cost,
		}, nil
	}
}
