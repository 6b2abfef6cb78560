package endpoint

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/internal/backoff"
)

// Health decides which endpoints are offered.
type Health struct {
	// Failures in a row eject an endpoint; default 3, below 0 never.
	Failures int
	// Eject is how long, the first time; doubled with each time in a row up to EjectMax. Defaults 5 s and 60 s.
	Eject, EjectMax time.Duration
	// MaxEjected is the share of a pool's endpoints, in percent, that may be ejected at a time; default 50.
	MaxEjected int
	// Check asks an endpoint actively; nil does not.
	Check Check
	// Interval lies between two checks, Timeout bounds one. Defaults 5 s and 2 s.
	Interval, Timeout time.Duration
	// Unhealthy failed checks in a row take an endpoint out, Healthy ones bring it back. Defaults 2 and 1.
	Unhealthy, Healthy int
}

// Check asks an endpoint whether it serves.
type Check func(ctx context.Context, addr netip.AddrPort) error

func (h *Health) setDefaults() {
	setDefault(&h.Failures, 3)
	setDefault(&h.Eject, 5*time.Second)
	setDefault(&h.EjectMax, time.Minute)
	setDefault(&h.MaxEjected, 50)
	setDefault(&h.Interval, 5*time.Second)
	setDefault(&h.Timeout, 2*time.Second)
	setDefault(&h.Unhealthy, 2)
	setDefault(&h.Healthy, 1)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Endpoint is one address that serves a route. It stays the same value for as long as its source tells it.
type Endpoint struct {
	Addr netip.AddrPort

	pool     *Pool
	active   atomic.Int64
	used     atomic.Uint64
	failures atomic.Uint64
	row      atomic.Int32 // failures since the last success

	// Below: guarded by pool.mu.
	member   Member
	ejected  bool
	until    time.Time
	times    int // ejections in a row
	back     *time.Timer
	reason   string
	sick     bool // by active checks
	checkRow int  // checks in a row that say otherwise than sick does
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
	limit := p.config.Health.Failures
	if int(e.row.Add(1)) < limit || limit < 0 {
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
	if e.ejected || p.endpoints[e.Addr] != e || ejected*100 > p.config.Health.MaxEjected*len(p.endpoints) {
		return
	}
	wait := backoff.Doubled(p.config.Health.Eject, p.config.Health.EjectMax, e.times)
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

// healthy is whether the endpoint is offered. The caller holds pool.mu.
func (e *Endpoint) healthy() bool { return !e.ejected && !e.sick }

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
	switch {
	case e.sick:
		s.Health, s.Reason = "unhealthy", e.reason
	case e.ejected:
		s.Health, s.Reason, s.Until = "ejected", e.reason, &e.until
	}
	return s
}

// startChecking begins the active checks of an endpoint. The caller holds pool.mu.
func (p *Pool) startChecking(e *Endpoint) {
	if p.config.Health.Check == nil || p.life == nil || p.checking[e] != nil {
		return
	}
	ctx, cancel := context.WithCancel(p.life)
	p.checking[e] = cancel
	p.checks.Go(func() { p.check(ctx, e) })
}

// stopChecking ends them. The caller holds pool.mu.
func (p *Pool) stopChecking(e *Endpoint) {
	if cancel := p.checking[e]; cancel != nil {
		cancel()
		delete(p.checking, e)
	}
}

// check asks one endpoint until ctx is done.
func (p *Pool) check(ctx context.Context, e *Endpoint) {
	h := p.config.Health
	ticker := time.NewTicker(h.Interval)
	defer ticker.Stop()
	for {
		once, cancel := context.WithTimeout(ctx, h.Timeout)
		err := h.Check(once, e.Addr)
		cancel()
		if ctx.Err() != nil {
			return
		}
		p.checked(e, err)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// checked takes the result of an active check.
func (p *Pool) checked(e *Endpoint, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.metrics.checks.Count(err)
	if (err != nil) == e.sick {
		e.checkRow = 0
		return
	}
	e.checkRow++
	limit := p.config.Health.Healthy
	if err != nil {
		limit = p.config.Health.Unhealthy
	}
	if e.checkRow < limit {
		return
	}
	e.checkRow, e.sick = 0, err != nil
	if err != nil {
		e.reason = err.Error()
		p.log.Warn("endpoint unhealthy", "endpoint", e.Addr, "error", err)
	} else {
		p.log.Info("endpoint healthy", "endpoint", e.Addr)
	}
	p.rebuild()
}
