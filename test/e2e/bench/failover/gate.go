package failover

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"sync"
	"time"
)

// gate is one node's way to the API. What goes through it can be late, wait, or be refused. TLS ends at it, so that a
// request is late by as much as is said, whether or not its connection is new.
type gate struct {
	listener net.Listener
	target   func(protocols []string) (net.Conn, error)
	running  sync.WaitGroup

	mu    sync.Mutex
	way   way
	open  map[net.Conn]struct{}
	moved *sync.Cond // the way is another one
}

// gateTimeout is how long a gate waits for the API's server to take a connection.
const gateTimeout = 10 * time.Second

// way is what happens to what goes through a gate.
type way struct {
	// up and down are how late requests and answers are.
	up, down time.Duration
	// hangs keeps all that comes until it no longer does, and refuses ends all connections.
	hangs, refuses bool
}

// newGate opens a gate on a host, to the API server there.
func newGate(h *host, address, target string) (*gate, error) {
	g := &gate{open: map[net.Conn]struct{}{}}
	g.moved = sync.NewCond(&g.mu)
	err := h.in(func() (err error) {
		g.listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("failed to open a gate: %w", err)
	}
	g.target = func(protocols []string) (conn net.Conn, err error) {
		err = h.in(func() error {
			conn, err = tls.DialWithDialer(&net.Dialer{Timeout: gateTimeout}, "tcp", target, &tls.Config{
				InsecureSkipVerify: true, NextProtos: protocols, //nolint:gosec // its own certificate, in a namespace
			})
			return err
		})
		return conn, err
	}
	g.running.Go(g.accept)
	return g, nil
}

// certificate is one that nobody verifies.
var certificate = sync.OnceValue(func() tls.Certificate {
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	return server.TLS.Certificates[0]
})

func (g *gate) accept() {
	for {
		conn, err := g.listener.Accept()
		if err != nil {
			return // it is closed
		}
		g.running.Go(func() { g.serve(conn) })
	}
}

// serve passes on what comes on a connection, and what is answered.
func (g *gate) serve(raw net.Conn) {
	if !g.keep(raw) {
		return
	}
	defer g.drop(raw)
	conn := tls.Server(raw, &tls.Config{
		Certificates: []tls.Certificate{certificate()}, NextProtos: []string{"h2", "http/1.1"},
	})
	if err := conn.Handshake(); err != nil {
		return
	}
	server, err := g.target([]string{conn.ConnectionState().NegotiatedProtocol})
	if err != nil || !g.keep(server) {
		return
	}
	defer g.drop(server)
	var both sync.WaitGroup
	both.Go(func() { g.pass(server, conn, func(w way) time.Duration { return w.up }) })
	both.Go(func() { g.pass(conn, server, func(w way) time.Duration { return w.down }) })
	both.Wait()
}

// piece is what came at a time.
type piece struct {
	at    time.Time
	bytes []byte
}

// pass passes on what comes from one side, each piece as late as the way says, and ends both when one ends.
func (g *gate) pass(to, from net.Conn, late func(way) time.Duration) {
	pieces := make(chan piece, 10000)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(pieces)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			if n > 0 {
				pieces <- piece{time.Now(), b[:n]}
			}
			if err != nil {
				return
			}
		}
	})
	for p := range pieces {
		if !g.wait(p.at, late) {
			break
		}
		if _, err := to.Write(p.bytes); err != nil {
			break
		}
	}
	_ = errors.Join(to.Close(), from.Close())
	for range pieces {
		continue // until the reader has ended
	}
	reading.Wait()
}

// wait waits until what came at a time may go on, and reports whether it may.
func (g *gate) wait(at time.Time, late func(way) time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.way.hangs && !g.way.refuses {
		g.moved.Wait()
	}
	if left := late(g.way) - time.Since(at); left > 0 && !g.way.refuses {
		g.mu.Unlock()
		time.Sleep(left)
		g.mu.Lock()
	}
	return !g.way.refuses
}

// keep notes a connection, unless there shall be none.
func (g *gate) keep(conn net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.way.refuses {
		_ = conn.Close()
		return false
	}
	g.open[conn] = struct{}{}
	return true
}

func (g *gate) drop(conn net.Conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, conn)
	_ = conn.Close()
}

// set changes the way.
func (g *gate) set(w way) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.way = w
	g.moved.Broadcast()
	if w.refuses {
		for conn := range g.open {
			_ = conn.Close()
		}
	}
}

// close ends the gate and all that goes through it.
func (g *gate) close() {
	if g == nil {
		return
	}
	_ = g.listener.Close()
	g.set(way{refuses: true})
	g.running.Wait()
}
