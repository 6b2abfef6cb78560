package web

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
)

// connQueue is the listener of a net/http server: connections that were accepted elsewhere.
type connQueue struct {
	addr netip.AddrPort

	mu      sync.Mutex
	some    sync.Cond
	waiting []net.Conn
	closed  bool
}

func newConnQueue(addr netip.AddrPort) *connQueue {
	q := &connQueue{addr: addr}
	q.some.L = &q.mu
	return q
}

// push gives the server a connection; false where the server has ended. It does not wait.
func (q *connQueue) push(c net.Conn) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.waiting = append(q.waiting, c)
		q.some.Signal()
	}
	return !q.closed
}

// Accept implements net.Listener.
func (q *connQueue) Accept() (net.Conn, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waiting) == 0 && !q.closed {
		q.some.Wait()
	}
	if q.closed {
		return nil, http.ErrServerClosed
	}
	c := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	return c, nil
}

// Close implements net.Listener. Connections that the server has not accepted are closed.
func (q *connQueue) Close() error {
	q.mu.Lock()
	left := q.waiting
	q.waiting, q.closed = nil, true
	q.some.Broadcast()
	q.mu.Unlock()
	for _, c := range left {
		_ = c.Close()
	}
	return nil
}

// Addr implements net.Listener.
func (q *connQueue) Addr() net.Addr { return net.TCPAddrFromAddrPort(q.addr) }
