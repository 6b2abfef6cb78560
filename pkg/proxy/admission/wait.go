package admission

import "time"

// Many machines that come at the same moment take what may be charged until the next look at the container (see
// pace), although most of its memory is free. They wait for that look; to refuse them would be for nothing. Newcomers
// wait as well while much of what was evicted has not ended, which takes the processor a while when it is busy: else
// those who come and those who go would have the memory twice.

// HoldTime is when to ask [Route.Held] again, HoldTimes how often at most: then the newcomer is to be admitted or
// refused.
const (
	HoldTime  = busyTick
	HoldTimes = waits
)

// Held is whether something should wait a little before it is admitted: there will be room behind the next look at the
// container.
func (r *Route) Held(cost Cost) bool { return r.held(cost) != nil }

// Wait waits while [Route.Held], for a few looks at most.
func (r *Route) Wait(cost Cost) {
	for range waits {
		looked := r.held(cost)
		if looked == nil {
			return
		}
		select {
		case <-looked:
		case <-time.After(idleTick):
			return
		}
	}
}

// held is closed behind the next look; nil where nothing should wait for that.
func (r *Route) held(cost Cost) <-chan struct{} {
	if r == nil {
		return nil
	}
	a := r.account
	a.mu.Lock()
	defer a.mu.Unlock()
	after := a.used + a.charge(cost)
	crowd := a.leaving > a.memory/leavingPart
	if !crowd && (!a.plenty || after <= a.room || after > a.memory) {
		return nil
	}
	if a.looked == nil {
		a.looked = make(chan struct{})
	}
	if !crowd {
		a.hurry()
	}
	return a.looked
}
