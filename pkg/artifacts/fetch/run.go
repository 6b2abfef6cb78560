package fetch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tinkerbell/stack/internal/backoff"
)

// How long a failed check waits for the next.
const (
	failedFirst = 30 * time.Second
	failedMost  = 10 * time.Minute
)

// Run checks until ctx is done. A check that fails is repeated, with growing pauses; what is served stays. Other
// settings are in force at once: a check by the old ones ends for them.
func (f *Fetcher) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		f.follow(f.adopt(ctx))
	}
	return nil
}

// follow checks by the settings until ctx is done.
func (f *Fetcher) follow(ctx context.Context) {
	pause := backoff.Backoff{First: failedFirst, Most: failedMost}
	for ctx.Err() == nil {
		err := f.Once(ctx)
		wait := f.config.untilCheck(time.Now())
		if err == nil {
			pause.Reset()
		} else if next := pause.Next(); wait == 0 || next < wait {
			wait = next
		}
		var due <-chan time.Time // never, where nothing failed and nothing is asked for
		if wait > 0 {
			due = time.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-due:
		}
	}
}

// untilCheck is how long it is from now to the next regular check. Checks are at multiples of CheckEvery of the wall
// clock: so several replicas of one installation look at a release at the same time, whenever each of them began, and
// serve another one for no longer than their downloads take.
func (c *Config) untilCheck(now time.Time) time.Duration {
	if c.CheckEvery <= 0 {
		return 0
	}
	return now.Truncate(c.CheckEvery.D()).Add(c.CheckEvery.D()).Sub(now)
}

// adopt puts the next settings in force, if there are any. Its context ends when others come.
func (f *Fetcher) adopt(ctx context.Context) context.Context {
	f.mu.Lock()
	defer f.mu.Unlock()
	ctx, f.stop = context.WithCancel(ctx)
	if f.next == nil {
		return ctx
	}
	f.config, f.next = f.next.withDefaults(), nil
	if f.client = f.options.Client; f.client == nil {
		f.client = newClient(f.config.Proxy)
	}
	for name := range f.sets {
		if !slices.ContainsFunc(f.config.Sets, func(s Set) bool { return s.Name == name }) {
			delete(f.sets, name)
			f.metrics.forget(name)
		}
	}
	for _, set := range f.config.Sets {
		if f.sets[set.Name] == nil {
			f.sets[set.Name] = &SetStatus{Name: set.Name, State: StatePending.String()}
			f.metrics.is(set.Name, StatePending)
		}
	}
	return ctx
}

// Reload reads the settings and has [Fetcher.Run] go on by them. Wrong ones change nothing. The volume stays:
// machines are served from it.
func (f *Fetcher) Reload(load func() (Config, error)) {
	wanted, err := load()
	f.mu.Lock()
	switch {
	case err != nil:
	case wanted.Volume != f.config.Volume:
		err = fmt.Errorf("the volume is %s until a restart, not %s", f.config.Volume, wanted.Volume)
	default:
		f.next = &wanted
		f.stop()
	}
	f.mu.Unlock()
	f.metrics.reloaded(err)
	if err != nil {
		f.log.Error("failed to reload artifacts, the old ones stay in force", "error", err)
		return
	}
	f.log.Info("artifacts reloaded", "sets", len(wanted.Sets))
}
