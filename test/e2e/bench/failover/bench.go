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
	// Program is stack-lb.
	Program string
	Nodes   int
	// Repeats is how often each case happens, and Cases are their names; none is all.
	Repeats int
	Cases   []string
	// Steady is how long nothing happens, in place of the cases; zero is none.
	Steady time.Duration
	// Short is the shortest lease in place of the default.
	Short bool
	// Key has the nodes keep the address by consent while the API is away.
	Key bool
	Log io.Writer
}

// Short are stack-lb's settings with the shortest lease.
var Short = []string{"STACK_LB_LEASE_DURATION=3s", "STACK_LB_RENEW_DEADLINE=1s", "STACK_LB_RETRY_PERIOD=300ms"}

// cases are those that are wished.
func (o Options) cases() ([]Case, error) {
	all := Cases()
	if o.Steady > 0 {
		return []Case{Steady(o.Steady)}, nil
	}
	for _, name := range o.Cases {
		if !slices.ContainsFunc(all, func(c Case) bool { return c.Name == name }) {
			return nil, fmt.Errorf("there is no case %q", name)
		}
	}
	return slices.DeleteFunc(all, func(c Case) bool { return len(o.Cases) > 0 && !slices.Contains(o.Cases, c.Name) }), nil
}

// Run lets every case happen. The part holds what was found until an error. The candidate of a part with the shortest
// lease is stack-lb-short. It is an error if two owners were seen at any time.
func Run(ctx context.Context, o Options) (part Part, err error) {
	cases, err := o.cases()
	if err != nil {
		return part, err
	}
	dir, err := os.MkdirTemp("", "bench-failover")
	if err != nil {
		return part, err
	}
	part = Part{Candidate: "stack-lb", Began: time.Now().UTC(), Nodes: o.Nodes}
	var settings []string
	if o.Short {
		part.Candidate, settings = "stack-lb-short", Short
	}
	if o.Key {
		part.Candidate += "-key"
		settings = append(slices.Clone(settings), "STACK_LB_KEY=a key of the bench, long enough")
	}
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
	s, err := NewSite(ctx, dir, o.Program, o.Nodes, settings...)
	if err != nil {
		return part, fmt.Errorf("%w (logs are in %s)", err, dir)
	}
	defer func() {
		part.Sampler = s.sampler.Since(part.Began)
		err = errors.Join(err, part.Sampler.Fault(), s.Close())
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w (logs are in %s)", err, dir)
		}
	}()
	if err := s.Open(ctx); err != nil {
		return part, err
	}
	for _, c := range cases {
		for i := range o.Repeats {
			one, err := s.Try(ctx, c)
			if err != nil {
				return part, fmt.Errorf("%s, repeat %d: %w", c.Name, i+1, err)
			}
			fmt.Fprintf(o.Log, "%s %d/%d: %+v\n", c.Name, i+1, o.Repeats, one)
			part.Tries = append(part.Tries, one)
			if one.TwoOwners > 0 {
				return part, fmt.Errorf("%s, repeat %d, was the last", c.Name, i+1)
			}
		}
	}
	return part, nil
}
