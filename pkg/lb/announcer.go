package lb

import (
	"context"
	"time"
)

// Times between announcements: in a burst, how long a burst lasts, and after it. Linux heeds a gratuitous ARP for an
// entry at most once in its locktime of 1 s, which is why a burst is no faster. defendInterval is the least between one
// that defends the address and the last.
const (
	burstInterval  = 1100 * time.Millisecond
	burstLength    = 5 * time.Second
	idleInterval   = 60 * time.Second
	defendInterval = time.Second
)

// announcer tells the stations of a link where an address is, so that they and the switches send there: at once after
// the address has moved, some times more in case a frame is lost, and then slowly for switches that forget; and at once
// where another station says that it has the address (RFC 5227 section 2.4).
type announcer struct {
	send func() error
	// may reports whether this node has the address still: without it nothing is sent.
	may func() bool
	// failed is told when sending failed, and when it succeeds again, by nil.
	failed func(error)

	defence chan struct{}
}

func newAnnouncer(send func() error, may func() bool, failed func(error)) *announcer {
	return &announcer{send, may, failed, make(chan struct{}, 1)}
}

// defend has the address announced now, since another station says that it has it. It may be called from any goroutine.
func (a *announcer) defend() {
	select {
	case a.defence <- struct{}{}:
	default:
	}
}

// run announces until ctx is done.
func (a *announcer) run(ctx context.Context) {
	began, bad := time.Now(), false
	next, last := began, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.defence:
			if soon := last.Add(defendInterval); soon.Before(next) {
				next = soon
			}
			continue
		case <-time.After(time.Until(next)):
		}
		last = time.Now()
		if a.may() {
			if err := a.send(); err != nil || bad {
				a.failed(err)
				bad = err != nil
			}
		}
		wait := idleInterval
		if again := last.Sub(began) + burstInterval; again <= burstLength && burstInterval < wait {
			wait = burstInterval
		}
		next = last.Add(wait)
	}
}
