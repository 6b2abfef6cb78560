package endpoint

import (
	"errors"
	"net/netip"
)

// Result is how an attempt with an endpoint went.
type Result int

const (
	// Taken is a request, or a connection, that the endpoint has taken: it stays acquired.
	Taken Result = iota
	// Unseen is one that the endpoint has seen nothing of, by its own fault: another endpoint may be tried.
	Unseen
	// Unreached is one that this host had no way for, as without a local port towards it: another endpoint may be tried,
	// and none is blamed.
	Unreached
	// Failed is one that the endpoint has seen something of, and failed: no other may get it.
	Failed
	// NotItsFault is one that failed by no endpoint's fault: none is blamed, and no other gets it.
	NotItsFault
)

// Attempts try endpoints one after the other, until one takes the request or connection, as many as may be tried have
// failed, or there is no sense in going on. They are the one place that blames endpoints for what they do not take.
type Attempts struct {
	pool     *Pool
	client   netip.Addr
	most     int
	at       *Endpoint // of the attempt under way
	over     bool
	tried    []*Endpoint
	failures []error
}

// Attempts makes Attempts at no more than most endpoints; Next begins the first.
func (p *Pool) Attempts(client netip.Addr, most int) Attempts {
	return Attempts{pool: p, client: client, most: most}
}

// Next acquires the endpoint of the next attempt. Done has to follow, unless the endpoint takes what it is given and
// the caller calls [Endpoint.Succeeded]. Where there is no endpoint left, the error joins those of all attempts; where
// there was none at all, it wraps [ErrNone].
func (a *Attempts) Next() (*Endpoint, error) {
	if a.over || len(a.tried) >= a.most {
		return nil, errors.Join(a.failures...)
	}
	var err error
	if a.at, err = a.pool.Acquire(a.client, a.tried...); err != nil {
		if len(a.failures) > 0 {
			err = errors.Join(a.failures...)
		}
		return nil, err
	}
	return a.at, nil
}

// Done ends the attempt under way. The endpoint that has taken it stays acquired.
func (a *Attempts) Done(how Result, err error) {
	e := a.at
	a.at = nil
	if how == Taken {
		e.Succeeded()
		return
	}
	a.failures = append(a.failures, err)
	if how == Unseen || how == Failed {
		e.Failed(err)
	}
	e.Release()
	a.over = how != Unseen && how != Unreached
	a.tried = append(a.tried, e)
}

// Try makes attempts by a function.
func (p *Pool) Try(
	client netip.Addr, most int, attempt func(e *Endpoint, tried int) (Result, error),
) (*Endpoint, error) {
	a := p.Attempts(client, most)
	for {
		e, err := a.Next()
		if err != nil {
			return nil, err
		}
		how, err := attempt(e, len(a.tried))
		if a.Done(how, err); how == Taken {
			return e, nil
		}
	}
}
