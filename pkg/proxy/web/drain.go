package web

import (
	"context"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// Steps of a drain.
const (
	drainPoll = 5 * time.Millisecond
	// patientPoll is for idle connections that may take their time: there may be thousands to count.
	patientPoll = 50 * time.Millisecond
	// silence is how long a connection may be open without a byte before a drain closes it.
	silence = time.Second
)

// shut ends a generation's server: idle connections at once, the others when their request has ended, all at the
// deadline, which there is from the beginning where limited is true, and else as soon as hurry is. For HTTP/1.1,
// http.Server.Shutdown would not do: it drops a request that it reads at that very moment.
//
// As long as hurry is false, idle connections may stay for one more request, which is answered with "Connection:
// close": a client could be sending it just now, and not every request may be sent twice.
func (f *Front) shut(g *generation, hurry func() bool, limited bool) {
	g.server.retired.Store(true)
	begun := time.Now()
	if left := f.connections.active(g.server); left > 0 {
		f.log.Info("draining connections", "connections", left, "seconds", g.settings.Drain.Seconds())
	}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		for !limited && !hurry() && ctx.Err() == nil {
			time.Sleep(patientPoll)
		}
		select {
		case <-ctx.Done():
		case <-time.After(g.settings.Drain):
			cancel()
		}
	})
	withGoAway := g.settings.any(isGRPC) || g.settings.TLS != nil
	if withGoAway {
		// It drops the requests that are being read. A client that has just connected would not ask again.
		for f.connections.unasked(g.server) && time.Since(begun) < silence && ctx.Err() == nil {
			time.Sleep(drainPoll)
		}
		_ = g.server.Shutdown(ctx) // sends GOAWAY
	}
	for f.connections.active(g.server) > 0 && ctx.Err() == nil {
		pause := drainPoll
		if withGoAway || hurry() {
			f.endIdle(g.server, begun.Add(silence))
		} else {
			pause = patientPoll
		}
		if !withGoAway && hurry() {
			g.server.SetKeepAlivesEnabled(false) // closes those that are idle
		}
		time.Sleep(pause)
	}
	if left := f.connections.active(g.server); left > 0 {
		f.log.Warn("closed connections that did not end in time", "connections", left)
	}
	_ = g.server.Close()
	f.connections.closeAll(g.server)
	next := f.current.Load()
	if next == g {
		next = nil
	}
	g.closeProxies(next)
}

// active counts the open connections of a server; nil is all of them.
func (l *connections) active(of *server) int {
	if of == nil {
		return l.open.Len()
	}
	n := 0
	for c := range l.open.All() {
		if c.server == of {
			n++
		}
	}
	return n
}

// unasked is whether a connection of a net/http server has not got to its first request.
func (l *connections) unasked(of *server) bool {
	for c := range l.open.All() {
		if c.server == of && !c.asked.Load() {
			return true
		}
	}
	return false
}

// endIdle closes the connections of a server that wait for their next request in the engine, and from some time on
// those that have not sent a byte.
func (f *Front) endIdle(of *server, silent time.Time) {
	silentToo := time.Now().After(silent)
	for _, in := range f.loops {
		in.engine.End(func(o http1.Owner) bool { return o.(*loopConn).server == of }, silentToo)
	}
	if silentToo {
		f.connections.closeWhere(func(c *accepted) bool { return c.server == of && !c.spoke.Load() && !c.inEngine() })
	}
}

// closeAll closes the connections of a server, upgraded ones too, which it no longer knows.
func (l *connections) closeAll(of *server) {
	l.closeWhere(func(c *accepted) bool { return c.server == of })
}

func (l *connections) closeWhere(which func(*accepted) bool) {
	var some []*accepted
	for c := range l.open.All() {
		if which(c) {
			some = append(some, c)
		}
	}
	for _, c := range some {
		c.Close()
	}
}
