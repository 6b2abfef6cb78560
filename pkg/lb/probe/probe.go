// Package probe asks a link who has an address: before it is claimed, and again and again by those that do not have it,
// so that two owners are seen, and a lease that is held while nobody answers.
package probe

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Heard is what another station says of an address.
type Heard struct {
	Kind Kind
	MAC  frame.MAC
}

// Kind is how it says so.
type Kind uint8

// The kinds.
const (
	Answer  Kind = iota // it has the address, and answers Ask
	Claim               // it has the address, and tells others, or who probes
	Probing             // it is about to claim the address
)

// Port is a link as the probe sees it; see wire.Port.
type Port interface {
	Ask() error
	Probe() error
	Hear(ctx context.Context, deadline time.Time) (Heard, error)
}

// How often an address is probed for before it is claimed, how long each time, and the most of the random wait before
// it. RFC 5227 section 1.1 has three probes a second or two apart after a second at most, for hosts that come up; this
// host knows already that the lease is its own.
const (
	ClaimProbes = 3
	ClaimWait   = 100 * time.Millisecond
)

// Times of the watch.
const (
	WatchInterval = time.Second
	// WatchWait is how long a round waits for answers.
	WatchWait = 300 * time.Millisecond
)

// maxOwners bounds how many different stations are remembered of one round: one that sends many answers gains nothing.
const maxOwners = 4

// Conflict probes for an address that this node, at self, is about to claim (RFC 5227 section 2.1.1), and returns the
// station that has it, or nil if there is none. own are stations of this node. Where another one probes as well, the
// one with the higher Ethernet address probes for twice as long once more, so that the other one has claimed the
// address by then. It goes on if that one has not: some stations probe and never claim, to look for conflicts, or as a
// monitor does.
func Conflict(ctx context.Context, port Port, self frame.MAC, own func(frame.MAC) bool) (*frame.MAC, error) {
	deadline := time.Now().Add(rand.N(ClaimWait))
	for probes, deferred := 0, false; ; {
		heard, err := port.Hear(ctx, deadline)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && probes == ClaimProbes:
			return nil, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			err := port.Probe()
			if probes == 0 && err == nil { // a router that answers for others by proxy answers a question, and no probe
				err = port.Ask()
			}
			if err != nil {
				return nil, err
			}
			probes++
			deadline = time.Now().Add(ClaimWait)
		case err != nil:
			return nil, err
		case own(heard.MAC):
		case heard.Kind != Probing:
			return &heard.MAC, nil
		case !deferred && Before(heard.MAC, self):
			probes, deferred = -ClaimProbes, true
		}
	}
}

// Lead is how long First takes at most, but for its wait.
const Lead = ClaimProbes*ClaimWait + ClaimWait/2

// First probes for an address whose owner has gone, so that its lease is about to end, and reports whether nobody has
// it and this node, at self, is the first of those that are about to claim it; and when it has probed last. It waits
// before, in which another one may begin; of two that probe at the same time the one with the lower Ethernet address is
// the first. It claims nothing.
func First(
	ctx context.Context, port Port, self frame.MAC, own func(frame.MAC) bool, wait time.Duration,
) (probed time.Time, first bool) {
	deadline := time.Now().Add(wait)
	for probes := 0; ; {
		heard, err := port.Hear(ctx, deadline)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && probes == ClaimProbes:
			return probed, true
		case errors.Is(err, os.ErrDeadlineExceeded):
			probed = time.Now()
			if port.Probe() != nil {
				return probed, false
			}
			probes++
			deadline = probed.Add(ClaimWait)
		case err != nil:
			return probed, false
		case own(heard.MAC):
		case heard.Kind != Probing || probes == 0 || Before(heard.MAC, self):
			return probed, false
		}
	}
}

// Before tells which of two stations keeps an address that both claim: the lower one.
func Before(a, b frame.MAC) bool { return bytes.Compare(a[:], b[:]) < 0 }

// Round is what came of a question.
type Round struct {
	Asked time.Time
	// Owners are the stations that answered, sorted, this node not among them.
	Owners []frame.MAC
	Err    error
}

// Watcher is whom Watch asks, and tells.
type Watcher struct {
	// Turn waits until a question may be asked.
	Turn func()
	// Interval is the time from one question to the next. It may change meanwhile.
	Interval func() time.Duration
	// Saw is told of each round.
	Saw func(Round)
	// Heard is told, all the time, of what stations say without being asked.
	Heard func(Heard)
}

// Watch asks until ctx is done.
func Watch(ctx context.Context, port Port, w Watcher) {
	for ctx.Err() == nil {
		if w.Turn(); ctx.Err() != nil {
			return
		}
		round := Round{Asked: time.Now(), Err: port.Ask()}
		until := func() time.Time { return round.Asked.Add(w.Interval()) }
		if round.Err == nil {
			soon := round.Asked.Add(min(WatchWait, w.Interval()))
			round.Owners, round.Err = listen(ctx, port, soon, w.Heard)
		}
		if ctx.Err() == nil {
			w.Saw(round)
		}
		for err := error(nil); ctx.Err() == nil && time.Now().Before(until()); {
			soon := time.Now().Add(min(WatchInterval, time.Until(until())))
			if err == nil {
				_, err = listen(ctx, port, soon, w.Heard)
				continue
			}
			select { // the error comes at once, again and again
			case <-ctx.Done():
			case <-time.After(time.Until(soon)):
			}
		}
	}
}

// listen hears until the deadline, and returns who answers, sorted.
func listen(ctx context.Context, port Port, deadline time.Time, heard func(Heard)) ([]frame.MAC, error) {
	var owners []frame.MAC
	for {
		h, err := port.Hear(ctx, deadline)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			slices.SortFunc(owners, func(a, b frame.MAC) int { return bytes.Compare(a[:], b[:]) })
			return owners, nil
		case err != nil:
			return owners, err
		case h.Kind != Answer:
			heard(h)
		case !slices.Contains(owners, h.MAC) && len(owners) < maxOwners:
			owners = append(owners, h.MAC)
		}
	}
}

// answerRounds is how often Answered asks.
const answerRounds = 2

// Answered asks some stations for their addresses, one after the other, each when it is its turn, and reports whether
// one that is not this node's answers.
func Answered(ctx context.Context, ports []Port, turn func(), own func(frame.MAC) bool) bool {
	for range answerRounds {
		for _, port := range ports {
			turn()
			if ctx.Err() != nil {
				return false
			}
			_ = port.Ask() // nobody answers then
			for deadline := time.Now().Add(ClaimWait); ; {
				heard, err := port.Hear(ctx, deadline)
				if err != nil {
					break
				}
				if heard.Kind == Answer && !own(heard.MAC) {
					return true
				}
			}
		}
	}
	return false
}
