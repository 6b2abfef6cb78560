// Package announce tells the stations of a link where an address is, so that they and the switches send there: at once
// after the address has moved, some times more in case a frame is lost, and then slowly for switches that forget; and
// at once where another station says that it has the address (RFC 5227 section 2.4).
package announce

import (
	"context"
	"time"
)

// Times between announcements: in a burst, how long a burst lasts, and after it. Linux heeds a gratuitous ARP for an
// entry at most once in its locktime of 1 s, which is why a burst is no faster. DefendInterval is the least between one
// that defends the address and the last.
const (
	BurstInterval  = 1100 * time.Millisecond
	BurstLength    = 5 * time.Second
	Interval       = 60 * time.Second
	DefendInterval = time.Second
)

// Announcer announces one address on one link.
type Announcer struct {
	// Send sends one announcement.
	Send func() error
	// May reports whether this node has the address still: without it nothing is sent.
	May func() bool
	// Failed is told when sending failed, and when it succeeds again, by nil.
	Failed func(error)

	defend chan struct{}
}

// New makes an announcer, which says nothing before Run.
func New(send func() error, may func() bool, failed func(error)) *Announcer {
	return &Announcer{Send: send, May: may, Failed: failed, defend: make(chan struct{}, 1)}
}

// Defend has the address announced now, since another station says that it has it. It may be called from any goroutine.
func (a *Announcer) Defend() {
	select {
	case a.defend <- struct{}{}:
	default:
	}
}

// Run announces until ctx is done.
func (a *Announcer) Run(ctx context.Context) {
	began, bad := time.Now(), false
	next, last := began, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.defend:
			if soon := last.Add(DefendInterval); soon.Before(next) {
				next = soon
			}
			continue
		case <-time.After(time.Until(next)):
		}
		last = time.Now()
		if a.May() {
			if err := a.Send(); err != nil || bad {
				a.Failed(err)
				bad = err != nil
			}
		}
		wait := Interval
		if again := last.Sub(began) + BurstInterval; again <= BurstLength && BurstInterval < wait {
			wait = BurstInterval
		}
		next = last.Add(wait)
	}
}
