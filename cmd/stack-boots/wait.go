package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
)

// Exit statuses of wait, besides exitUnheard.
const (
	waitFailed = 3   // the machine failed, or does not get on for long
	waitOver   = 124 // the time is over, as with timeout(1)
)

// askEvery is how often the program is asked by a command that waits.
const askEvery = time.Second

// stuckFor is how long a machine has to be stuck by one cause to have failed for those who wait: as long as for the
// alert StackBootStuck. Many get on by themselves before.
const stuckFor = 5 * time.Minute

// waiting is what is waited for.
type waiting struct {
	client
	goal journal.State
	from time.Time // boots that began before do not count
}

// wait is the command that waits until a machine is in a state.
func wait(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	w := waiting{client: newClient(getenv)}
	flags := w.flags("wait", "<MAC, address or name>", stderr)
	goal := flags.String("for", string(journal.Booted), "state: booted (which needs a proof), installed "+
		"(as far as seen, or booted), booting, stuck, failed, quiet")
	timeout := flags.Duration("timeout", 20*time.Minute, "how long to wait")
	since := flags.Duration("since", 0, "only a boot counts that began at most so long before the command; "+
		"default any, and so that of a machine which booted long ago")
	if err := w.parse(flags, args, true); err != nil {
		return err
	}
	if w.goal = journal.State(*goal); !slices.Contains(page.States, w.goal) {
		return exit{2, fmt.Sprintf("-for %q: none of %v", *goal, page.States)}
	}
	if *since > 0 {
		w.from = time.Now().Add(-*since)
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	said, err := w.until(ctx)
	if err == nil {
		fmt.Fprintln(cleanWriter{stdout}, said)
	}
	return err
}

// until waits until the machine is in the state, and says where it is then. While stack-boots is away, as in an
// upgrade, it is asked again.
func (w *waiting) until(ctx context.Context) (said string, err error) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		var m journal.MachineView
		now := w.get(ctx, &m)
		if now == nil {
			if said, now = w.judge(&m, time.Now()); now == nil {
				return said, nil
			}
		}
		if err == nil || ctx.Err() == nil {
			err = now
		}
		var e exit
		if errors.As(err, &e) && e.status != waitOver && e.status != exitUnheard {
			return "", err
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-ticker.C:
		}
	}
}

// judge says where a machine is. With an error that is not where it is to be: the exit status tells how that ends.
func (w *waiting) judge(m *journal.MachineView, now time.Time) (said string, err error) {
	b := page.Newest(m)
	if b.Begin.Before(w.from) {
		return "", exit{exitUnheard, "no boot was heard of that began since " + w.from.UTC().Format(time.RFC3339)}
	}
	said = m.ID + " is " + render("state", m, now)
	failed := b.State == journal.StateFailed || b.IsStuck() && now.Sub(b.Cause.Since) >= stuckFor
	switch {
	case b.State == w.goal, w.goal == journal.Installed && b.State == journal.Booted:
		return said, nil
	case failed && w.goal != journal.Stuck && w.goal != journal.StateFailed:
		return "", exit{waitFailed, said}
	default:
		return "", exit{waitOver, said}
	}
}
