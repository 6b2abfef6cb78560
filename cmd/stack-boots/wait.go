package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
)

// Exit statuses of wait, besides exitUnheard.
const (
	waitFailed = 3   // the machine failed, or does not get on for long
	waitOver   = 124 // the time is over, as with timeout(1)
)

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
func wait(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	w := waiting{client: newClient(getenv)}
	flags := w.flags("wait", "<MAC, address or name>", stderr)
	goal := flags.String("for", string(journal.Booted), "state: booted, booting, stuck, failed, quiet")
	timeout := flags.Duration("timeout", 20*time.Minute, "how long to wait")
	since := flags.Duration("since", 0, "only a boot counts that began at most so long before the command; "+
		"default any, and so that of a machine which booted long ago")
	if code, over := w.parse(flags, args, true); over {
		return code
	}
	if w.goal = journal.State(*goal); !slices.Contains(page.States, w.goal) {
		fmt.Fprintf(stderr, "%s: -for %q: none of %v\n", flags.Name(), *goal, page.States)
		return 2
	}
	if *since > 0 {
		w.from = time.Now().Add(-*since)
	}
	ctx, restore := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer restore()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	said, code := w.until(ctx)
	if code == 0 {
		fmt.Fprintln(&cleanWriter{w: stdout}, said)
	} else {
		fmt.Fprintf(&cleanWriter{w: stderr}, "%s: %s\n", flags.Name(), said)
	}
	return code
}

// until waits, and returns what it came to, in words and as the exit status. While stack-boots is away, as in an
// upgrade, it is asked again.
func (w *waiting) until(ctx context.Context) (said string, code int) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		var m journal.MachineView
		_, err := w.get(ctx, &m)
		w.tag = "" // causes grow old without any change
		var refused *refusal
		switch {
		case ctx.Err() != nil:
		case err == nil:
			var over bool
			if said, code, over = w.judge(&m, time.Now()); over {
				return said, code
			}
		case unheard(err):
			said, code = err.Error(), exitUnheard
		case errors.As(err, &refused):
			return refused.detail, 1
		default:
			said, code = err.Error(), 1
		}
		select {
		case <-ctx.Done():
			return said, max(code, 1)
		case <-ticker.C:
		}
	}
}

// judge says where a machine is, and whether that is the end of waiting.
func (w *waiting) judge(m *journal.MachineView, now time.Time) (said string, code int, over bool) {
	b := page.Newest(m)
	if b.Begin.Before(w.from) {
		return "no boot was heard of that began since " + w.from.UTC().Format(time.RFC3339), exitUnheard, false
	}
	said = fmt.Sprintf("%s is %s at %s%s", m.ID, b.State, b.At, because(": ", b.Cause))
	failed := b.State == journal.StateFailed || b.IsStuck() && now.Sub(b.Cause.Since) >= stuckFor
	switch {
	case b.State == w.goal:
		return said, 0, true
	case failed && w.goal != journal.Stuck && w.goal != journal.StateFailed:
		return said, waitFailed, true
	default:
		return said, waitOver, false
	}
}
