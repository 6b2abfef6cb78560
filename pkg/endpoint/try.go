package endpoint

import (
	"errors"
	"net/netip"
)

// Outcome is how an attempt with an endpoint went.
type Outcome int

const (
	// Taken is a request, or a connection, that the endpoint has taken: it stays acquired.
	Taken Outcome = iota
	// Refused is one that the endpoint has seen nothing of, by its own fault: another endpoint may be tried.
	Refused
	// Failed is one that the endpoint has seen something of, and failed: no other may get it.
	Failed
	// Spoiled is one that failed by no endpoint's fault.
	Spoiled
)

// Try has endpoints attempt the same thing, one after the other, until one takes it, most of them have failed, or
// there is no sense in going on. It is the one place that blames endpoints for what they do not take. The first is
// given where one has been acquired already. The error joins those of all attempts; without an endpoint it wraps
// [ErrNone].
func (p *Pool) Try(
	client netip.Addr, given *Endpoint, most int, attempt func(e *Endpoint, tried int) (Outcome, error),
) (*Endpoint, error) {
	var tried []*Endpoint
	var failures []error
	for len(tried) < most {
		e := given
		if given = nil; e == nil {
			var err error
			if e, err = p.Acquire(client, tried...); err != nil {
				if len(failures) == 0 {
					failures = []error{err}
				}
				break
			}
		}
		outcome, err := attempt(e, len(tried))
		if outcome == Taken {
			e.Succeeded()
			return e, nil
		}
		failures = append(failures, err)
		if outcome != Spoiled {
			e.Failed(err)
		}
		e.Release()
		if outcome != Refused {
			break
		}
		tried = append(tried, e)
	}
	return nil, errors.Join(failures...)
}
