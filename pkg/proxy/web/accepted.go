package web

import (
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// accepted is a client's connection from accept to close, wherever it is served: as the front counts it, and as
// admission charges it.
type accepted struct {
	connections *connections
	server      *server        // of net/http, that gets it if it is handed off; set when it is counted
	peer        netip.AddrPort // as accept or the PROXY header told it: the socket itself forgets it with a reset
	charge      admission.Charge

	evicted atomic.Bool
	closed  atomic.Bool
	spoke   atomic.Bool // has sent something to net/http's server
	asked   atomic.Bool // its first request has reached a handler of net/http

	mu sync.Mutex
	by closer
}

// closer is the connection of the engine or of net/http's server, by which an accepted one is served.
type closer interface {
	Close() error
	// abort resets it, and has the kernel free what its buffers hold.
	abort()
}

// servedBy notes that s serves the connection from now on. It is false where the connection has been closed or given
// up.
func (c *accepted) servedBy(s closer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by = s
	return !c.lost()
}

func (c *accepted) current() closer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.by
}

// Close closes the connection, or has it closed.
func (c *accepted) Close() {
	if s := c.current(); s != nil {
		_ = s.Close()
	}
}

// inEngine reports whether the connection has not been handed off.
func (c *accepted) inEngine() bool {
	_, ok := c.current().(*loopConn)
	return ok
}

// lost reports whether nothing can come of the connection any more: it has been closed, or given up.
func (c *accepted) lost() bool { return c.evicted.Load() || c.closed.Load() }

// Evict implements admission.Holder.
func (c *accepted) Evict() {
	if !c.evicted.Swap(true) {
		if s := c.current(); s != nil {
			s.abort()
		}
	}
}

// release is the connection's end.
func (c *accepted) release() {
	c.closed.Store(true)
	if c.connections.open.Remove(c) {
		c.charge.Release()
		c.connections.metrics.closed()
	}
}
