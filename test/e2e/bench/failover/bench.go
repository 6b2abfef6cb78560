package failover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
)

// Options are what a bench needs.
type Options struct {
	// Balancer is stack-lb, keepalived or metallb.
	Balancer string
	// StackLB is the program, and Older one of before; an empty one is none.
	StackLB, Older   string
	Nodes, Addresses int
	// Proxy is kube-proxy's mode.
	Proxy string
	// Repeats is how often each case happens, and Cases are their names; "chaos" is all of those, and none is all others.
	Repeats int
	Cases   []string
	// Steady is how long nothing happens in the case of that name.
	Steady time.Duration
	// Short is the shortest lease in place of the default.
	Short bool
	// Keep leaves the logs of all programs.
	Keep bool
	Log  io.Writer
}

// Plan is all that the bench has, part by part.
func (o Options) Plan() []Options {
	gone := []string{"leave", "killed", "node-gone"}
	const some = 5 // of the peer
	part := func(change func(*Options)) Options {
		one := o
		one.Balancer, one.Addresses = "stack-lb", 1
		change(&one)
		return one
	}
	plan := []Options{
		part(func(one *Options) {
			for _, c := range Cases() {
				one.Cases = append(one.Cases, c.Name)
			}
			one.Cases = append(one.Cases, "steady", "chaos")
		}),
		part(func(one *Options) { one.Addresses, one.Cases = 100, append(slices.Clone(gone), "steady") }),
		part(func(one *Options) { one.Cases = []string{"api-away-10m"} }),
	}
	for _, addresses := range []int{1, 100} {
		plan = append(plan, part(func(one *Options) {
			one.Balancer, one.Addresses, one.Repeats = "keepalived", addresses, min(o.Repeats, some)
			one.Cases = append(slices.Clone(gone), "steady")
		}))
	}
	return append(plan, part(func(one *Options) {
		one.Balancer, one.Repeats, one.Cases = "metallb", min(o.Repeats, some), append(slices.Clone(gone), "steady")
	}))
}

// Short are stack-lb's settings with the shortest lease.
var Short = []string{"STACK_LB_LEASE_DURATION=3s"}

// cases are those that are wished.
func (o Options) cases() ([]Case, error) {
	all, chaos := Cases(), Chaos(o.Older)
	if len(o.Cases) == 0 {
		return all, nil
	}
	all = slices.Concat(all, []Case{Steady(o.Steady), Long()}, chaos)
	var wished []Case
	for _, name := range o.Cases {
		if name == "chaos" {
			wished = append(wished, chaos...)
			continue
		}
		i := slices.IndexFunc(all, func(c Case) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no case %q", name)
		}
		wished = append(wished, all[i])
	}
	return wished, nil
}

// balancer is what gives the nodes their addresses, and how a part with it is called.
func (o Options) balancer() (b Balancer, candidate string, err error) {
	candidate = o.Balancer
	var settings []string
	if o.Short {
		candidate += "-short"
		settings = slices.Clone(Short)
	}
	if o.Addresses > 1 {
		candidate += fmt.Sprintf("-%d", o.Addresses)
	}
	if o.Proxy != "nftables" {
		candidate += "-" + o.Proxy
	}
	switch o.Balancer {
	case "stack-lb":
		b = StackLB(o.StackLB, settings...)
	case "keepalived":
		b, err = Keepalived()
	case "metallb":
		b, err = MetalLB()
	default:
		err = fmt.Errorf("there is no balancer %q", o.Balancer)
	}
	return b, candidate, err
}

// Run lets every case happen. The part holds what was found until an error. It is an error if two owners were seen at
// any time, but of a balancer that is not ours.
func Run(ctx context.Context, o Options) (part Part, err error) {
	cases, err := o.cases()
	if err != nil {
		return part, err
	}
	balancer, candidate, err := o.balancer()
	if err != nil {
		return part, err
	}
	dir, err := os.MkdirTemp("", "bench-failover")
	if err != nil {
		return part, err
	}
	part = Part{Candidate: candidate, Began: time.Now().UTC(), Nodes: o.Nodes, Addresses: o.Addresses}
	watching, end := context.WithCancel(ctx)
	var watched sync.WaitGroup
	loads := []float64{load()}
	watched.Go(func() { each(watching, 30*time.Second, func() { loads = append(loads, load()) }) })
	defer func() {
		end()
		watched.Wait()
		part.Load = loads
		part.Ended = time.Now().UTC()
	}()
	s, err := NewSite(ctx, dir, Setup{Nodes: o.Nodes, Addresses: o.Addresses, Proxy: o.Proxy, Balancer: balancer})
	if err != nil {
		return part, fmt.Errorf("%w (logs are in %s)", err, dir)
	}
	shared := 0 // probes that two nodes answered in a case where they may
	defer func() {
		logs := s.sampler.Since(part.Began)
		part.Sampler = wireOf(logs)
		for _, log := range logs {
			if balancer.name == "stack-lb" && part.Sampler.TwoOwners > shared {
				err = errors.Join(err, log.Fault())
			}
		}
		err = errors.Join(err, s.Close())
		switch {
		case err == nil && !o.Keep:
			err = os.RemoveAll(dir)
		case err == nil:
			fmt.Fprintf(o.Log, "logs are in %s\n", dir)
		default:
			err = fmt.Errorf("%w (logs are in %s)", err, dir)
		}
	}()
	if err := s.Open(ctx); err != nil {
		return part, err
	}
	for _, c := range cases {
		repeats := o.Repeats
		if c.few > 0 {
			repeats = min(repeats, c.few)
		}
		for i := range repeats {
			one, err := s.Try(ctx, c)
			if err != nil {
				return part, fmt.Errorf("%s, repeat %d: %w", c.Name, i+1, err)
			}
			fmt.Fprintf(o.Log, "%s %s %d/%d: %+v\n", candidate, c.Name, i+1, repeats, one)
			part.Tries = append(part.Tries, one)
			if c.shares {
				shared += one.TwoOwners
			}
		}
	}
	return part, nil
}
