// Package announce tells the stations of a link where an address is, so that they and the switches send there: at once
// after the address has moved, some times more in case a frame is lost, and then slowly for switches that forget.
package announce

import (
	"context"
	"time"
)

// Times between announcements: in a burst, how long a burst lasts, and after it. Linux heeds a gratuitous ARP for an
// entry at most once in its locktime of 1 s, which is why a burst is no faster.
const (
	BurstInterval = 1100 * time.Millisecond
	BurstLength   = 5 * time.Second
	Interval      = 60 * time.Second
)

// Announcer announces one address on one link.
type Announcer struct {
	// Send sends one announcement.
	Send func() error
	// Failed is told when sending failed, and when it succeeds again, by nil.
	Failed func(error)
	// Interval is the time between announcements after a burst; zero is the constant.
	Interval time.Duration
}

// New makes an announcer, which says nothing before Run.
func New(send func() error, failed func(error), interval time.Duration) *Announcer {
	if interval == 0 {
		interval = Interval
	}
	return &Announcer{Send: send, Failed: failed, Interval: interval}
}

// Run announces until ctx is done.
func (a *Announcer) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	began, bad := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if err := a.Send(); err != nil || bad {
			a.Failed(err)
			bad = err != nil
		}
		wait := a.Interval
		if next := time.Since(began) + BurstInterval; next <= BurstLength && BurstInterval < wait {
			wait = BurstInterval
		}
		timer.Reset(wait)
	}
}
