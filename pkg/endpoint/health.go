package endpoint

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/internal/backoff"
)

// So many failures in a row eject an endpoint: for ejectFirst, doubled with each time in a row up to ejectMost; of a
// pool no more than mostEjected at a time.
const (
	failures              = 3
	ejectFirst, ejectMost = 5 * time.Second, time.Minute
	mostEjected           = 50 // percent
)

// Endpoint is one address that serves a route. It stays the same value for as long as its source tells it.
type Endpoint struct {
	Addr netip.AddrPort

	pool     *Pool
	active   atomic.Int64
	used     atomic.Uint64
	failures atomic.Uint64
	row      atomic.Int32 // failures since the last success

	// Below: guarded by pool.mu.
	member  Member
	ejected bool
	until   time.Time
	times   int // ejections in a row
	back    *time.Timer
	reason  string
}

// Release ends a use that [Pool.Acquire] began.
func (e *Endpoint) Release() { e.active.Add(-1) }

// Succeeded reports that the endpoint answered.
func (e *Endpoint) Succeeded() {
	if e.row.Load() == 0 {
		return
	}
	e.row.Store(0)
	e.pool.mu.Lock()
	defer e.pool.mu.Unlock()
	if !e.ejected {
		e.times = 0
	}
}

// Failed reports that the endpoint did not take a connection, or broke it before it answered.
func (e *Endpoint) Failed(err error) {
	e.failures.Add(1)
	p := e.pool
	p.metrics.failures.Inc()
	p.look()
	if e.row.Add(1) < failures {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	ejected := 1
	for _, other := range p.endpoints {
		if other.ejected {
			ejected++
		}
	}
	if e.ejected || p.endpoints[e.Addr] != e || ejected*100 > mostEjected*len(p.endpoints) {
		return
	}
	wait := backoff.Doubled(ejectFirst, ejectMost, e.times)
	e.times++
	e.ejected, e.until, e.reason = true, time.Now().Add(wait), err.Error()
	e.row.Store(0)
	e.back = time.AfterFunc(wait, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if e.ejected {
			e.ejected = false
			p.log.Info("endpoint back on trial", "endpoint", e.Addr)
			p.rebuild()
		}
	})
	p.metrics.ejections.Inc()
	p.log.Warn("endpoint ejected", "endpoint", e.Addr, "seconds", wait.Seconds(), "error", err)
	p.rebuild()
}

// forgive ends an ejection of an endpoint that is gone. The caller holds pool.mu.
func (e *Endpoint) forgive() {
	if e.back != nil {
		e.back.Stop()
	}
	e.ejected = false
}

// status describes the endpoint. The caller holds pool.mu.
func (e *Endpoint) status() Status {
	s := Status{
		Address:  e.Addr,
		Health:   "healthy",
		Fallback: e.member.Fallback,
		Active:   e.active.Load(),
		Used:     e.used.Load(),
		Failures: e.failures.Load(),
	}
	if e.ejected {
		s.Health, s.Reason, s.Until = "ejected", e.reason, &e.until
	}
	return s
}
