package boot

import (
	"net/netip"
	"sync"
)

// borrowed are events between two uses. The function that takes events is a field, so that the compiler has to assume
// that it keeps its argument: an event on the caller's stack would be an allocation each time.
var borrowed = sync.Pool{New: func() any { return new(Event) }}

// Borrow gives an empty event. It is to be given back with [Event.Return].
func Borrow() *Event { return borrowed.Get().(*Event) }

// Return gives an event back, and forgets what it says.
func (e *Event) Return() {
	e.Reset()
	borrowed.Put(e)
}

// Bytes is an address as events have it: all zero where it is no address, or the unspecified one.
func Bytes(a netip.Addr) [16]byte {
	if !a.IsValid() || a.IsUnspecified() {
		return [16]byte{}
	}
	return a.As16()
}

// Bytes4 is the same for an IPv4 address.
func Bytes4(a [4]byte) [16]byte {
	if a == ([4]byte{}) {
		return [16]byte{}
	}
	return [16]byte{10: 0xff, 11: 0xff, 12: a[0], 13: a[1], 14: a[2], 15: a[3]}
}
