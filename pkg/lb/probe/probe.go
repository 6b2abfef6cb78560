// Package probe asks a link who has an address: before it is claimed, and again and again by those that do not have it,
// so that two owners are seen, and a lease that is held while nobody answers.
package probe

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Port is a link as the probe sees it; see wire.Port.
type Port interface {
	Ask() error
	Answer(deadline time.Time) (frame.MAC, error)
}

// How often an address is asked for before it is claimed, and how long each time. RFC 5227 asks for three probes a
// second or two apart for hosts that come up; this host knows already that the lease is its own.
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

// maxOwners bounds how many different stations are remembered of one round: who sends many answers gains nothing.
const maxOwners = 4

// Owners asks a number of times, waits for answers each time, and returns the Ethernet addresses that answered, sorted.
// With first it returns as soon as one has.
func Owners(ctx context.Context, port Port, times int, wait time.Duration, first bool) ([]frame.MAC, error) {
	var owners []frame.MAC
	for range times {
		if err := port.Ask(); err != nil {
			return owners, err
		}
		deadline := time.Now().Add(wait)
		for ctx.Err() == nil {
			owner, err := port.Answer(deadline)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return owners, err
			}
			if !slices.Contains(owners, owner) && len(owners) < maxOwners {
				owners = append(owners, owner)
			}
			if first {
				return owners, nil
			}
		}
		if ctx.Err() != nil {
			return owners, ctx.Err()
		}
	}
	slices.SortFunc(owners, func(a, b frame.MAC) int { return slices.Compare(a[:], b[:]) })
	return owners, nil
}

// Watch asks in each interval until ctx is done, and tells saw of the owners of each round, ourselves not among them,
// or of the error.
func Watch(ctx context.Context, port Port, interval time.Duration, saw func([]frame.MAC, error)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		owners, err := Owners(ctx, port, 1, min(WatchWait, interval), false)
		if ctx.Err() != nil {
			return
		}
		saw(owners, err)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
