package http1

import (
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/internal/list"
)

// Key says for which requests a connection to an endpoint may be used. An answer in HTTP/1.1 does not name its request:
// whatever bytes an endpoint sends on a connection are the answer to the request on it. An endpoint that answers one
// request twice would thus answer the next request, perhaps that of another client. Hence a connection is used for the
// requests of one client alone.
type Key struct {
	endpoint netip.AddrPort
	client   netip.Addr
}

// PerClient is the key for requests of one client to one endpoint. The client's address is the one that the route
// trusts. With an invalid address (an unknown client) the connection is not kept.
func PerClient(endpoint netip.AddrPort, client netip.Addr) Key {
	return Key{endpoint: endpoint, client: client.Unmap().WithZone("")}
}

// IdleLimits are those of an engine's idle connections to the endpoints of a route.
type IdleLimits struct {
	Total  int           // connections; if there is one more, the one that is idle for longest goes
	PerKey int           // connections of one key, likewise
	Age    time.Duration // how long a connection may be idle
}

// idleConns are connections that wait for their next request. The caller closes those that are taken out.
type idleConns struct {
	limits IdleLimits
	all    list.List[*upstream] // the one that is idle for longest first
	byKey  map[Key]*keyed
	spare  []*keyed // so that clients that come and go allocate nothing
}

// keyed are the connections of one key, likewise. There is at least one.
type keyed struct{ conns list.List[*upstream] }

// idleSlot is a connection's place among the idle ones.
type idleSlot struct {
	key           Key
	since         time.Time // idle
	of            *keyed    // nil while it is not idle
	ofAll, ofSame list.Link[*upstream]
}

func newIdleConns(limits IdleLimits) idleConns {
	return idleConns{limits: limits, byKey: map[Key]*keyed{}}
}

// take takes out the connection of a key that was used last; nil if there is none.
func (p *idleConns) take(key Key, now time.Time) *upstream {
	same := p.byKey[key]
	if same == nil {
		return nil
	}
	last := same.conns.Last()
	if now.Sub(last.since) >= p.limits.Age {
		return nil
	}
	p.remove(last)
	return last
}

// age is for how long the connection has been idle that take would return; 0 if there is none.
func (p *idleConns) age(key Key, now time.Time) time.Duration {
	if same := p.byKey[key]; same != nil {
		return now.Sub(same.conns.Last().since)
	}
	return 0
}

// hasRoom reports whether a connection can be kept that is the only one of its key, for which no other has to go.
func (p *idleConns) hasRoom(key Key) bool {
	return p.all.Len() < p.limits.Total && p.byKey[key] == nil
}

// put keeps a connection for requests with its key. It returns the one that is too many, if there is one: that which
// has been idle for longest, or u itself if connections with its key are not kept.
func (p *idleConns) put(u *upstream, now time.Time) (surplus *upstream) {
	if !u.key.client.IsValid() || p.limits.Total <= 0 || p.limits.PerKey <= 0 {
		return u
	}
	same := p.byKey[u.key]
	switch {
	case same != nil && same.conns.Len() >= p.limits.PerKey:
		surplus = same.conns.First()
	case p.all.Len() >= p.limits.Total:
		surplus = p.all.First()
	}
	if surplus != nil {
		p.remove(surplus)
		same = p.byKey[u.key] // surplus may have been the last of its key
	}
	if same == nil {
		if n := len(p.spare); n > 0 {
			same, p.spare = p.spare[n-1], p.spare[:n-1]
		} else {
			same = &keyed{}
		}
		p.byKey[u.key] = same
	}
	u.since, u.of = now, same
	p.all.Add(&u.ofAll, u)
	same.conns.Add(&u.ofSame, u)
	return surplus
}

// remove takes a connection out, if it is there.
func (p *idleConns) remove(u *upstream) {
	same := u.of
	if same == nil {
		return
	}
	u.of = nil
	p.all.Remove(&u.ofAll)
	same.conns.Remove(&u.ofSame)
	if same.conns.Len() == 0 {
		delete(p.byKey, u.key)
		p.spare = append(p.spare, same)
	}
}

// expired takes out one connection that has been idle for IdleLimits.Age; nil if there is none. There may be more.
func (p *idleConns) expired(now time.Time) *upstream {
	first := p.all.First()
	if first == nil || now.Sub(first.since) < p.limits.Age {
		return nil
	}
	p.remove(first)
	return first
}

// removeAll takes out all connections to an endpoint.
func (p *idleConns) removeAll(endpoint netip.AddrPort) (all []*upstream) {
	for u := p.all.First(); u != nil; {
		next := u.ofAll.Next()
		if u.key.endpoint == endpoint {
			p.remove(u)
			all = append(all, u)
		}
		u = next
	}
	return all
}

// close takes out all connections. None is kept from now on.
func (p *idleConns) close() (all []*upstream) {
	for p.all.Len() > 0 {
		u := p.all.First()
		p.remove(u)
		all = append(all, u)
	}
	p.limits.Total = 0
	return all
}
