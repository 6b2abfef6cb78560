package endpoint

import (
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
)

// maglevSize is the number of slots, a prime well above a hundred times the endpoints that a service of this kind
// has (Eisenbud et al., "Maglev", NSDI 2016, section 3.4).
const maglevSize = 4099

// view has the endpoints that a pool chooses from. It is never changed, only replaced.
type view struct {
	usable []*Endpoint // those offered, in the order of their addresses
	all    []*Endpoint
	table  []uint16 // by client: slot → index in usable
}

// choose takes a healthy endpoint, or an unhealthy one when all healthy ones were tried.
func (p *Pool) choose(client netip.Addr, tried []*Endpoint) (*Endpoint, error) {
	v := p.view.Load()
	if len(v.usable) > 0 {
		if e := p.among(v, client, tried); e != nil {
			return e, nil
		}
	}
	for _, e := range v.all {
		if !slices.Contains(tried, e) {
			return e, nil
		}
	}
	why := p.Ready()
	switch {
	case len(tried) > 0:
		why = fmt.Errorf("every endpoint was tried: %w", ErrNone)
	case why == nil: // an endpoint has come since the view was loaded
		why = ErrNone
	}
	return nil, fmt.Errorf("failed to pick an endpoint of route %s: %w", p.config.Route, why)
}

func (p *Pool) among(v *view, client netip.Addr, tried []*Endpoint) *Endpoint {
	n := len(v.usable)
	var start int
	if v.table != nil {
		start = int(v.table[clientSlot(client)])
	} else {
		start = int(p.next.Add(1) % uint64(n))
	}
	for i := range n {
		if e := v.usable[(start+i)%n]; !slices.Contains(tried, e) {
			return e
		}
	}
	return nil
}

// maglevTable fills the slots: one after the other, each endpoint takes the next free slot of its own permutation. So
// the shares are equal, and a lost endpoint moves few of the other endpoints' clients. The permutation depends on the
// address alone, so replicas of the proxy agree.
func maglevTable(endpoints []*Endpoint) []uint16 {
	if len(endpoints) == 0 {
		return nil
	}
	const free = ^uint16(0)
	table := slices.Repeat([]uint16{free}, maglevSize)
	type walk struct{ next, skip uint64 }
	walks := make([]walk, len(endpoints))
	for i, e := range endpoints {
		name := e.Addr.Addr().As16()
		h := fnv64(name[:], uint64(e.Addr.Port()))
		walks[i] = walk{next: mix(h) % maglevSize, skip: mix(h^0x9e3779b97f4a7c15)%(maglevSize-1) + 1}
	}
	for filled := 0; ; {
		for i := range walks {
			w := &walks[i]
			for table[w.next] != free {
				w.next = (w.next + w.skip) % maglevSize
			}
			table[w.next] = uint16(i)
			if filled++; filled == maglevSize {
				return table
			}
		}
	}
}

// clientSlot maps a client's address to its slot. It does not depend on the process, so that replicas agree.
func clientSlot(client netip.Addr) int {
	b := client.Unmap().WithZone("").As16()
	return int(mix(fnv64(b[:], 0)) % maglevSize)
}

// fnv64 is FNV-1a, started from a seed.
func fnv64(b []byte, seed uint64) uint64 {
	h := uint64(14695981039346656037) ^ seed
	for _, c := range b {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return h
}

// mix spreads a hash over all its bits (the finalizer of MurmurHash3).
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// jitter is a process-wide seed, so that pools do not all start with the same endpoint.
var jitter = maphash.Bytes(maphash.MakeSeed(), nil)
