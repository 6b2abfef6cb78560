package web

import (
	"context"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// A connection leaves the engine once, for net/http's server, and does not come back. With it go the bytes of the
// request that has been read, which the server reads again, and what was begun for the request: an attempt, which the
// request's handler goes on with.

// attempt is a request that the engine began to ask an endpoint.
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

// attemptOf makes an attempt of the engine's one.
func attemptOf(h *http1.Attempt) *attempt {
	a := &attempt{start: h.Start, endpoint: h.Endpoint.(*endpoint.Endpoint)}
	asked := h.Upstream
	if asked == nil {
		return a
	}
	socket, err := sock.NewSocket(asked.FD)
	if err != nil {
		a.err = err
		return a
	}
	operation := "write"
	if asked.EOF {
		operation = "read"
	}
	failure := asked.Failure
	if failure != nil {
		failure = &net.OpError{
			Op: operation, Net: "tcp", Addr: net.TCPAddrFromAddrPort(asked.Key.Endpoint()),
			Err: os.NewSyscallError(operation, failure),
		}
	}
	a.unsent = asked.Unsent
	if asked.EOF {
		a.upstream = newUpstreamConn(socket, asked.Key, asked.Received, failure)
	} else {
		a.upstream, a.err = newUpstreamConn(socket, asked.Key, asked.Received, nil), failure
	}
	a.upstream.used = asked.Used
	return a
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
