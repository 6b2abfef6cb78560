package web

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/idle"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

const (
	// upstreamsKept is how many idle connections a route keeps to its endpoints: so many for the goroutines, and as many
	// for the loops.
	upstreamsKept = 256
	// upstreamIdle is for how long.
	upstreamIdle = 60 * time.Second
)

// idleLimits are those of one of several pools that share upstreamsKept. One client may have half of it.
func idleLimits(pools int) idle.Limits {
	total := max(upstreamsKept/pools, 1)
	return idle.Limits{Total: total, PerKey: max(total/2, 1), Age: upstreamIdle}
}

// idlePool has the idle connections to endpoints that goroutines use; those of the loops are http1's.
type idlePool struct {
	dial     func(ctx context.Context, network, addr string) (net.Conn, error)
	response time.Duration

	mu       sync.Mutex
	idle     *idle.Pool[*upstreamConn]
	sweeping *time.Timer // set while there are any
}

func newIdlePool(s *Settings) *idlePool {
	return &idlePool{
		dial: dial(s, nil), response: s.Response,
		idle: idle.New[*upstreamConn](idleLimits(1)),
	}
}

// roundTrip sends a request that may be sent again, and reads the head of its answer. An idle connection may have been
// closed by the endpoint meanwhile: then the request is sent on a new one.
func (p *idlePool) roundTrip(
	r *http.Request, key idle.Key, interim *interimWriter,
) (response *http.Response, u *upstreamConn, err error) {
	for u = p.take(key); ; u = nil {
		if u == nil {
			conn, err := p.dial(r.Context(), "tcp", key.Endpoint().String())
			if err != nil {
				return nil, nil, err
			}
			u = newUpstreamConn(conn, key)
		}
		if response, err = u.roundTrip(r, interim, p.deadline(time.Now())); err == nil {
			return response, u, nil
		}
		_ = u.Close()
		var timeout net.Error
		if !u.used || r.Context().Err() != nil || errors.As(err, &timeout) && timeout.Timeout() {
			return nil, nil, err
		}
	}
}

// deadline is when an endpoint must have answered a request that it was asked at a time; zero is never.
func (p *idlePool) deadline(start time.Time) time.Time {
	if p.response <= 0 {
		return time.Time{}
	}
	return start.Add(p.response)
}

// take takes the idle connection of a key that was used last; nil where there is none. One on which the endpoint has
// spoken, or ended, since its last answer is not taken: what lies there (a 408 for the idle, a surplus that came late)
// is nobody's answer.
func (p *idlePool) take(key idle.Key) *upstreamConn {
	for now := time.Now(); ; {
		p.mu.Lock()
		u, ok := p.idle.Take(key, now)
		p.mu.Unlock()
		if !ok {
			return nil
		}
		if u.quiet() {
			return u
		}
		_ = u.Close()
	}
}

// put keeps a connection for the next request with its key.
func (p *idlePool) put(u *upstreamConn) {
	u.resize(sock.Small)
	u.used = true
	p.mu.Lock()
	surplus, ok := p.idle.Put(u, time.Now())
	if p.sweeping == nil && p.idle.Len() > 0 {
		p.sweeping = time.AfterFunc(upstreamIdle, p.sweep)
	}
	p.mu.Unlock()
	if ok {
		_ = surplus.Close()
	}
}

// sweep closes the connections that nobody used for long: the endpoint may have closed its side.
func (p *idlePool) sweep() {
	var old []*upstreamConn
	now := time.Now()
	p.mu.Lock()
	for u, ok := p.idle.Expired(now); ok; u, ok = p.idle.Expired(now) {
		old = append(old, u)
	}
	p.sweeping = nil
	if p.idle.Len() > 0 {
		p.sweeping = time.AfterFunc(upstreamIdle/4, p.sweep)
	}
	p.mu.Unlock()
	for _, u := range old {
		_ = u.Close()
	}
}

// drop closes the idle connections to an endpoint.
func (p *idlePool) drop(addr netip.AddrPort) {
	p.mu.Lock()
	kept := p.idle.RemoveAll(addr)
	p.mu.Unlock()
	for _, u := range kept {
		_ = u.Close()
	}
}

// close closes the idle connections, and those that come back.
func (p *idlePool) close() {
	p.mu.Lock()
	all := p.idle.Close()
	if p.sweeping != nil {
		p.sweeping.Stop()
	}
	p.mu.Unlock()
	for _, u := range all {
		_ = u.Close()
	}
}
