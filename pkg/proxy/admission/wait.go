package admission

import "time"

// Between two looks at the container only a part of its free memory may be charged (see pace). Many machines that come
// at one moment use that part up although most of the memory is free; they wait for the next look rather than be
// refused. Newcomers also wait while many evicted connections have not ended, as on a busy processor: else the memory
// of the evicted ones would be given away a second time.

// HoldTime is the time after which to ask [Route.Held] again, and HoldTimes how often at most; then the newcomer is to
// be admitted or refused.
const (
	HoldTime  = busyTick
	HoldTimes = waits
)

// Held reports whether a newcomer should wait before it is admitted: the next look at the container will find room.
func (r *Route) Held(cost Cost) bool { return r.held(cost) != nil }

// Wait waits while [Route.Held] is true, for a few looks at most.
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

// held is closed by the next look. It is nil where a newcomer need not wait for that.
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
