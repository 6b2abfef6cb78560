package web

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// A connection leaves its loop once, for net/http's server, and does not come back. With it go the bytes of the request
// that has been read, which the server reads again, and what was begun for the request: an attempt, which the request's
// handler goes on with.

// attempt is a request that the loop began to ask an endpoint.
type attempt struct {
	start    time.Time // of the request
	endpoint *endpoint.Endpoint
	upstream *upstreamConn // that the request was written to, but for unsent; nil: a new one is to be opened
	unsent   []byte
	err      error // of writing the request
}

// give lets go of an attempt that no handler takes up.
func (a *attempt) give() {
	if a.upstream != nil {
		_ = a.upstream.Close()
	}
	a.endpoint.Release()
}

// progress is how far the loop has got with an endpoint.
type progress struct {
	early   []byte // read of the answer
	unsent  []byte // of the request
	ended   bool   // the answer ended behind early, in order unless there is a failure
	failure error  // of reading, if the answer ended, else of writing
}

// leave hands the connection off in the midst of a request.
func (s *loopConn) leave(reached progress) {
	x, u := s.exchange, s.upstream
	s.exchange, s.upstream = nil, nil
	x.route.metrics.handed()
	a := &attempt{start: x.start, endpoint: x.endpoint}
	switch {
	case u != nil:
		s.loop.loop.Release(u.fd, u.handle)
		u.handle = loop.Handle{}
		a.upstream, a.err = u.handOff(reached)
		a.unsent = bytes.Clone(reached.unsent)
	case !x.request.safe(): // nothing has been sent: net/http's way begins anew
		a.endpoint.Release()
		a = nil
	}
	s.handOff(x.in[:x.size], a)
	x.free()
}

// handOff gives the connection to net/http's server, with what was read of a request, and the attempt that was begun
// for it.
func (s *loopConn) handOff(early []byte, a *attempt) {
	s.detach(early, a)
	s.conn.serve()
}

// detach makes the connection one of the runtime's poller.
func (s *loopConn) detach(early []byte, a *attempt) {
	c := s.conn
	s.gone = true
	s.loop.remove(s)
	s.loop.loop.Release(s.fd, s.handle)
	socket, err := sock.NewSocket(s.fd)
	if err != nil { // what os.NewFile cannot use is no descriptor
		s.loop.front.log.Error("failed to take over connection", "error", err)
		c.closed.Store(true)
	}
	c.socket, c.early = socket, bytes.Clone(early)
	if a != nil {
		c.attempt.Store(a)
	}
	// From here on Close closes the socket; a goroutine that asked the loop to close it has set c.closed.
	if c.inLoop.Store(nil); c.lost() {
		_ = c.Close()
	}
	s.loop.front.retired.Done()
}

// serve gives a connection that has left its loop to net/http's server.
func (c *conn) serve() {
	served := net.Conn(c)
	if c.server.secure {
		served = tls.Server(c, c.listener.tls) // the handshake is in the connection's own goroutine
	}
	if c.lost() || !c.server.connections.push(served) {
		_ = c.Close()
	}
}

// handOff makes a connection to an endpoint one of the runtime's poller. An error is of writing the request.
func (u *loopUpstream) handOff(reached progress) (*upstreamConn, error) {
	socket, err := sock.NewSocket(u.fd)
	if err != nil {
		return nil, err
	}
	failure := reached.failure
	if failure != nil {
		op := "write"
		if reached.ended {
			op = "read"
		}
		failure = &net.OpError{
			Op: op, Net: "tcp", Addr: net.TCPAddrFromAddrPort(u.Key().Endpoint()), Err: os.NewSyscallError(op, failure),
		}
	}
	if reached.ended {
		made := newUpstreamConn(socket, u.Key(), bytes.Clone(reached.early), failure)
		made.used = u.used
		return made, nil
	}
	made := newUpstreamConn(socket, u.Key(), bytes.Clone(reached.early), nil)
	made.used = u.used
	return made, failure
}

// attemptKey is the context's key for a connection with an attempt.
type attemptKey struct{}

func connContext(ctx context.Context, nc net.Conn) context.Context {
	c, ok := nc.(*conn)
	if !ok {
		return ctx
	}
	ctx = context.WithValue(ctx, below{}, c)
	if c.attempt.Load() != nil {
		return context.WithValue(ctx, attemptKey{}, c)
	}
	return ctx
}

// startOf is when a request began: now, or when a loop took it up.
func startOf(r *http.Request) time.Time {
	if c, ok := r.Context().Value(attemptKey{}).(*conn); ok {
		if a := c.attempt.Load(); a != nil {
			return a.start
		}
	}
	return time.Now()
}

// takeAttempt takes up what a loop has begun for a request.
func takeAttempt(r *http.Request) *attempt {
	if c, ok := r.Context().Value(attemptKey{}).(*conn); ok {
		return c.attempt.Swap(nil)
	}
	return nil
}
