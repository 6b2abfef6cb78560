package failover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// Case is a way in which an address is lost.
type Case struct {
	Name string
	// fault happens to the node that has the address.
	fault func(ctx context.Context, s *Site, owner *node) error
	// moves says that another node has the address afterwards.
	moves bool
	// atMost is how long the address may take to answer again after the fault until the case is over all the same.
	atMost time.Duration
	// Bound is the longest outage that echo requests may see, in seconds; 0 is none.
	Bound float64
}

// calm is how long the address has to answer without a break until a case is over.
const calm = 1500 * time.Millisecond

// leaveTime is how long stack-lb may take to end in order.
const leaveTime = 15 * time.Second

// APIAway is how long the API is away in the case of that name.
const APIAway = 60 * time.Second

// Cases are all.
func Cases() []Case {
	return []Case{
		{"leave", func(_ context.Context, _ *Site, n *node) error {
			return n.lb.End(leaveTime)
		}, true, 10 * time.Second, 1},
		{"drain", drain, true, 10 * time.Second, 1},
		{"rolling-update", update, false, 10 * time.Second, 1},
		{"killed", func(_ context.Context, _ *Site, n *node) error {
			n.lb.Kill()
			return nil
		}, true, 20 * time.Second, 7},
		{"stopped", func(_ context.Context, _ *Site, n *node) error {
			return n.lb.Signal(syscall.SIGSTOP)
		}, true, 20 * time.Second, 7},
		{"node-gone", func(_ context.Context, _ *Site, n *node) error {
			if err := n.cable(false); err != nil {
				return err
			}
			n.lb.Kill()
			return nil
		}, true, 20 * time.Second, 7},
		{"cable-out", func(_ context.Context, _ *Site, n *node) error { return n.cable(false) }, true, 20 * time.Second, 7},
		{"pod-not-ready", func(ctx context.Context, s *Site, n *node) error {
			pods := s.allReady()
			pods[n] = podNotReady
			return s.api.endpoints(ctx, pods)
		}, true, 10 * time.Second, 2},
		{"api-away", func(ctx context.Context, s *Site, _ *node) error {
			if err := s.api.host.cable(false); err != nil {
				return err
			}
			return errors.Join(sleep(ctx, APIAway), s.api.host.cable(true))
		}, false, 30 * time.Second, 0},
		{"switch-forgot", forgetSwitch, false, 70 * time.Second, 60},
	}
}

// Steady is a case in which nothing happens for a time.
func Steady(long time.Duration) Case {
	nothing := func(ctx context.Context, _ *Site, _ *node) error { return sleep(ctx, long) }
	return Case{"steady", nothing, false, time.Minute, 0}
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
	nodes := slices.Clone(s.nodes)
	slices.SortStableFunc(nodes, func(a, b *node) int {
		switch owner {
		case a:
			return -1
		case b:
			return 1
		}
		return 0
	})
	for _, n := range nodes {
		if err := n.lb.End(leaveTime); err != nil {
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
	if err := c.fault(ctx, s, owner); err != nil {
		return Try{}, fmt.Errorf("failed to stage %s: %w", c.Name, err)
	}
	done := time.Now()
	for {
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return Try{}, err
		}
		calmFrom := time.Now().Add(-calm)
		over := calmFrom.After(done) && s.look.answers(calmFrom) && (!c.moves || s.sampler.Owner() != owner.name)
		if !over && time.Since(done) < c.atMost {
			continue
		}
		log := s.sampler.Since(from)
		return Try{
			Case: c.Name, At: from.UTC(), Owner: owner.name, Next: s.sampler.Owner(), Seen: s.look.Since(from),
			Probes: log.Probes, NoOwner: log.NoOwner, TwoOwners: log.TwoOwners, Moves: log.Moves,
		}, nil
	}
}
