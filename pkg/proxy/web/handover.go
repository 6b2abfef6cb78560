package web

import (
	"context"
	"net"
	"net/http"
	"time"
)

// single is a listener with one connection, by which net/http's server takes over one that it did not accept.
type single struct {
	*conn
	taken bool
}

// Accept implements net.Listener.
func (s *single) Accept() (net.Conn, error) {
	if s.taken {
		return nil, errRetired
	}
	s.taken = true
	return s.conn, nil
}

// Close implements net.Listener; the connection stays.
func (s *single) Close() error { return nil }

// Addr implements net.Listener.
func (s *single) Addr() net.Addr { return s.LocalAddr() }

// begunKey is the context's key for a connection with an attempt.
type begunKey struct{}

func withBegun(ctx context.Context, nc net.Conn) context.Context {
	c, ok := nc.(*conn)
	if !ok {
		return ctx
	}
	ctx = context.WithValue(ctx, below{}, c)
	if c.begun.Load() != nil {
		return context.WithValue(ctx, begunKey{}, c)
	}
	return ctx
}

// startOf is when a request began: now, or when a connection that is handed over did.
func startOf(r *http.Request) time.Time {
	if c, ok := r.Context().Value(begunKey{}).(*conn); ok {
		if a := c.begun.Load(); a != nil {
			return a.start
		}
	}
	return time.Now()
}

// begunFor takes up what was begun for a request.
func begunFor(r *http.Request) attempt {
	if c, ok := r.Context().Value(begunKey{}).(*conn); ok {
		if a := c.begun.Swap(nil); a != nil {
			return *a
		}
	}
	return attempt{}
}
