package web

import (
	"net"
	"net/netip"
	"sync"

	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// proxyConn is a connection that begins with a PROXY header, which tells the client. Whoever asks first for the client,
// or for bytes, reads the header: net/http asks in the connection's own goroutine.
type proxyConn struct {
	*conn
	once   sync.Once
	broken error
}

// NetConn is the connection below.
func (c *proxyConn) NetConn() net.Conn { return c.conn }

// RemoteAddr implements net.Conn.
func (c *proxyConn) RemoteAddr() net.Addr {
	c.once.Do(c.readHeader)
	return c.conn.RemoteAddr()
}

// Read implements net.Conn.
func (c *proxyConn) Read(b []byte) (int, error) {
	if c.once.Do(c.readHeader); c.broken != nil {
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: c.broken} // net/http answers other errors with a 400
	}
	return c.conn.Read(b)
}

func (c *proxyConn) readHeader() {
	source, _, early, err := sock.ReadProxyHeader(c.socket)
	c.early = early
	switch {
	case err != nil:
		c.broken = err
		c.listener.metrics.refused("proxy_header")
		if c.listener.lines.Allow(c.peer.Addr(), "PROXY header") {
			c.listener.log.Info("PROXY header refused", "peer", c.peer, "error", err)
		}
	case source.IsValid():
		c.client = source
		c.broken = c.move(source.Addr())
	default: // the load balancer's own
		c.broken = c.move(c.peer.Addr())
	}
	if c.broken != nil {
		c.resetOnClose()
	}
}

// move counts and charges a connection for the client that its PROXY header has told.
func (c *charge) move(client netip.Addr) error {
	l := c.listener
	if !l.conns.Count(c, client, l.settings.Load().MaxPerClient) {
		l.metrics.refused("client_limit")
		return sock.ErrClientFull
	}
	if why := c.lease.Move(client); !c.closed.Load() && why != admission.Admitted {
		l.metrics.refused(why.String())
		return errNoRoom
	}
	return nil
}
