package tcp

import (
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// The measured cost of a session, in bytes: two sockets, two goroutines with their stacks, and the memory that the
// garbage collector has not freed yet.
const (
	costSession        = 20 << 10
	costTLS            = 64 << 10 // more for each side with TLS: its state, and the buffer of its reader
	sessionDescriptors = 2
)

// costOf is the cost of a new session.
func costOf(s *Settings) admission.Cost {
	c := admission.Cost{Memory: costSession, Descriptors: sessionDescriptors}
	if s.TLS != nil {
		c.Memory += costTLS
	}
	if s.Secure != nil {
		c.Memory += costTLS
	}
	return c
}

// resize gives a bulk direction the largest buffers that there is room for, up to most. It is called again as long as
// the direction goes on.
func (c *copier) resize(most sock.Buffers) {
	size, changed := c.buffers.Resize(&c.session.lease, below(c.dst), most)
	if changed && c.direction == toClient && (c.bound || size != sock.Largest) {
		sock.SetReceiveBuffer(below(c.src), size)
		c.bound = true
	}
}

// below is a stream's connection.
func below(s stream) *sock.Socket {
	if secure, ok := s.(*secured); ok {
		return secure.tcp
	}
	return s.(*sock.Socket)
}

func refusalOf(why admission.Refusal) refusal {
	switch why {
	case admission.Descriptors:
		return refusedDescriptors
	case admission.ClientShare:
		return refusedShare
	default:
		return refusedMemory
	}
}

// Evict implements admission.Holder. The loop closes a session that it has not handed off.
func (l *loopSession) Evict() {
	if l.handedOff() || !l.acceptLoop.loop.Do(l.evictInLoop) {
		l.evictOutside()
	}
}

// evictInLoop runs in the loop, which may have handed the session off since Evict was called.
func (l *loopSession) evictInLoop() {
	switch {
	case l.handedOff():
		l.evictOutside()
	case l.ends[toServer].fd >= 0:
		for i := range l.ends {
			sock.ResetOnClose(l.ends[i].fd)
		}
		if l.dialing != nil {
			l.dialing.endpoint.Release()
		}
		l.close()
	}
}

// evictOutside ends a session that runs in goroutines.
func (l *loopSession) evictOutside() {
	if !l.handedOff() {
		return
	}
	l.mu.Lock()
	for _, s := range []*sock.Socket{l.client, l.server} {
		if s != nil {
			sock.Disconnect(s)
		}
	}
	l.mu.Unlock()
	l.abort()
}

// handedOff reports whether the loop has handed the session off.
func (l *loopSession) handedOff() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.client != nil
}
