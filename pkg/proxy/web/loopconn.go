package web

import (
	"crypto/tls"
	"net"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// loopConn is a client's connection in package http1's engine, where every connection begins, also one with TLS. It
// leaves the engine at most once, for net/http's server, and before an endpoint was asked for its request. Its
// [loopConn.Route] decides which requests the engine serves.
type loopConn struct {
	*accepted
	http1   *http1.Conn
	header  bool         // begins with a PROXY header
	awaited *sock.Header // awaits that header; nil if there is none

	// forwarded has the header lines that tell an endpoint of the client, made for the last request's host and version.
	forwarded struct {
		host  string
		old   bool
		lines []byte
	}
	request  plainRequest // under way, or the last one
	streamed *streamed    // nil unless its answer streams
}

// plainRequest is how a request of the engine goes.
type plainRequest struct {
	attempts  endpoint.Attempts
	to        netip.AddrPort // the endpoint that was asked last
	announced announced      // what was recorded of it before its end
	reason    string         // why no endpoint has answered
	failure   error          // likewise
}

// streamed is an answer that did not come whole with its head.
type streamed struct {
	client, endpoint int // their descriptors
	buffers          sock.StreamBuffers
	received         sock.Buffers
	sent             int64 // since the buffers were sized
	hasRoom          bool  // it was charged
}

// Route implements http1.Owner.
func (c *loopConn) Route() http1.Route {
	if c.header || c.server.tls {
		return nil
	}
	if plain := c.server.front.plain(); plain != nil {
		return plain
	}
	return nil
}

// Received implements http1.Owner.
func (c *loopConn) Received(n int) { c.connections.metrics.bytesIn(n) }

// Sent implements http1.Owner.
func (c *loopConn) Sent(n int) {
	c.connections.metrics.bytesOut(int64(n))
	if st := c.streamed; st != nil && n > 0 {
		c.charge.Touch()
		if st.sent += int64(n); st.sent > longAnswer {
			c.lengthen()
		}
	}
}

// Progress implements http1.Owner.
func (c *loopConn) Progress() { c.charge.Touch() }

// Retired implements http1.Owner.
func (c *loopConn) Retired() bool { return c.server.leaves() }

// Closed implements http1.Owner.
func (c *loopConn) Closed() {
	c.awaited.Stop()
	c.release()
}

// Streaming implements http1.Owner. It is too late to refuse the request, which the endpoint has answered: where there
// is no room for the answer, it is passed on in pieces so small that the connection's own cost covers them.
func (c *loopConn) Streaming(upstream, client int, length int64) (piece int) {
	c.streamed = &streamed{
		client: client, endpoint: upstream, hasRoom: c.charge.Grow(costStreamed) == admission.Admitted,
	}
	if length > longAnswer {
		c.lengthen()
	}
	if c.streamed.hasRoom {
		return http1.Piece
	}
	return unchargedPiece
}

// Streamed implements http1.Owner.
func (c *loopConn) Streamed(kept bool) {
	st := c.streamed
	st.buffers.Resize(&c.charge, sock.FD(st.client), sock.Small)
	if kept && st.received != sock.Small {
		sock.SetReceiveBuffer(sock.FD(st.endpoint), sock.Small)
	}
	if st.hasRoom {
		c.charge.Shrink(costStreamed)
	}
	c.streamed = nil
}

// lengthen gives a long answer larger buffers, where there is room for them, and takes them back where there is not any
// more.
func (c *loopConn) lengthen() {
	st := c.streamed
	st.sent = 0
	if !st.hasRoom {
		return
	}
	// No more than that: slow readers of a backend fill the sockets to both sides.
	if size, changed := st.buffers.Resize(&c.charge, sock.FD(st.client), sock.Medium); changed && size != st.received {
		sock.SetReceiveBuffer(sock.FD(st.endpoint), size)
		st.received = size
	}
}

// HandOff implements http1.Owner: the connection is net/http's from now on.
func (c *loopConn) HandOff(fd int, early []byte) {
	socket, err := sock.NewSocket(fd)
	if err != nil { // what os.NewFile cannot use is no descriptor
		c.connections.log.Error("failed to take over connection", "error", err)
		c.release()
		return
	}
	if !c.server.tls && len(early) > 1 && early[0] == 0x16 && early[1] == 3 { // RFC 8446 section 5.1: a ClientHello
		c.server.front.mistaken(c.peer.Addr().Unmap(), boot.ReasonTLSOnPlain, "")
	}
	next := &conn{early: early}
	next.accepted, next.socket, next.stall = c.accepted, socket, c.connections.stall()
	if next.server.http2 {
		next.idling.limit = next.server.idle
	}
	next.spoke.Store(len(early) > 0)
	served := net.Conn(next)
	if c.server.tls {
		served = tls.Server(next, c.connections.tls) // the handshake is in the connection's own goroutine
	}
	if !c.servedBy(next) || !c.server.queue.push(served) {
		_ = next.Close()
	}
}

// Close implements closer.
func (c *loopConn) Close() error {
	c.http1.Close()
	return nil
}

// abort implements closer.
func (c *loopConn) abort() { c.http1.Abort() }
