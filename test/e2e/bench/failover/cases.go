package failover

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// Case is a way in which an address is lost.
type Case struct {
	Name string
	// fault is what happens to the node that has the address.
	fault func(ctx context.Context, s *Site, n *node) error
	// watch is how long the client looks.
	watch time.Duration
	// Bound is what the issue asks for, in seconds of echo requests; 0 is none.
	Bound float64
}

// APIAway is how long the API is away in the case of that name.
var APIAway = 60 * time.Second

// Cases are all.
func Cases() []Case {
	return []Case{
		{"leave", func(_ context.Context, _ *Site, n *node) error { return n.lb.leave() }, 4 * time.Second, 1},
		{"killed", func(_ context.Context, _ *Site, n *node) error {
			n.lb.kill()
			return nil
		}, 10 * time.Second, 7},
		{"stopped", func(_ context.Context, _ *Site, n *node) error {
			return n.lb.signal(syscall.SIGSTOP)
		}, 12 * time.Second, 7},
		{"node-gone", func(_ context.Context, _ *Site, n *node) error {
			if err := n.cable(false); err != nil {
				return err
			}
			n.lb.kill()
			return nil
		}, 10 * time.Second, 7},
		{"cable-out", func(_ context.Context, _ *Site, n *node) error { return n.cable(false) }, 10 * time.Second, 7},
		{"pod-not-ready", func(ctx context.Context, s *Site, n *node) error {
			ready := s.allReady()
			ready[n.name] = false
			return s.api.endpoints(ctx, "web", ready)
		}, 4 * time.Second, 2},
		{"api-away", func(ctx context.Context, s *Site, _ *node) error {
			if err := s.api.host.cable(false); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
			case <-time.After(APIAway):
			}
			return s.api.host.cable(true)
		}, 20 * time.Second, 0},
		{"switch-forgot", forgetSwitch, 65 * time.Second, 60},
	}
}

// forgetSwitch has the client remember a wrong station for the address, as a switch or router that has lost it does.
func forgetSwitch(_ context.Context, s *Site, _ *node) error {
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

// allReady are endpoints of which one is ready on each node.
func (s *Site) allReady() map[string]bool {
	ready := map[string]bool{}
	for _, n := range s.nodes {
		ready[n.name] = true
	}
	return ready
}

// Open makes the Service, and waits until its address answers.
func (s *Site) Open(ctx context.Context) error {
	service := serviceOf("web", VIP+","+VIP6, "Local", 80, "TCP")
	if err := s.api.do(ctx, http.MethodPost, servicesPath, service); err != nil {
		return err
	}
	return s.restart(ctx, s.allReady())
}

// Try lets a case happen once, and says what the client saw.
func (s *Site) Try(ctx context.Context, c Case) (Seen, error) {
	if err := s.restart(ctx, s.allReady()); err != nil {
		return Seen{}, err
	}
	owner, err := s.owner()
	if err != nil {
		return Seen{}, err
	}
	from := time.Now()
	if err := c.fault(ctx, s, owner); err != nil {
		return Seen{}, fmt.Errorf("failed to stage %s: %w", c.Name, err)
	}
	select {
	case <-ctx.Done():
		return Seen{}, ctx.Err()
	case <-time.After(c.watch):
	}
	return s.look.Since(from), nil
}
