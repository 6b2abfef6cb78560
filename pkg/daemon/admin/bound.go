package admin

import (
	"net"
	"sync"
)

// maxConnections is how many connections the admin port takes: monitoring and probes need a few.
const maxConnections = 64

// bound is a listener whose oldest connection goes for one too many, so that a probe always gets in.
type bound struct {
	net.Listener
	most int

	mu   sync.Mutex
	open []*connection // oldest first
}

// connection is one of a bound's.
type connection struct {
	net.Conn
	bound *bound
}

// Accept implements net.Listener.
func (b *bound) Accept() (net.Conn, error) {
	inner, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &connection{inner, b}
	var oldest *connection
	b.mu.Lock()
	if b.open = append(b.open, c); len(b.open) > b.most {
		oldest = b.open[0]
	}
	b.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
	return c, nil
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.bound.mu.Lock()
	for i, each := range c.bound.open {
		if each == c {
			c.bound.open = append(c.bound.open[:i], c.bound.open[i+1:]...)
			break
		}
	}
	c.bound.mu.Unlock()
	return c.Conn.Close()
}
