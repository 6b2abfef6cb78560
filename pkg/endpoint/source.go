package endpoint

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/tinkerbell/stack/internal/backoff"
)

// Source says where some of a pool's endpoints are.
type Source interface {
	// Watch tells every answer to update until ctx is done: the members, or why there is no answer (the last
	// one then holds). A receive from refresh asks to look again now, as an endpoint was found wrong.
	Watch(ctx context.Context, refresh <-chan struct{}, update func([]Member, error))
	// String names the source as its user wrote it.
	String() string
}

// Member is an endpoint as its source knows it.
type Member struct {
	Addr netip.AddrPort
	// Fallback members serve only while no other does: the terminating ones of a Kubernetes Service (KEP-1669).
	Fallback bool
}

// Fixed is a source that never changes.
func Fixed(addrs ...netip.AddrPort) Source { return fixed(addrs) }

type fixed []netip.AddrPort

func (f fixed) Watch(_ context.Context, _ <-chan struct{}, update func([]Member, error)) {
	members := make([]Member, len(f))
	for i, addr := range f {
		members[i].Addr = addr
	}
	update(members, nil)
}

func (f fixed) String() string {
	if len(f) == 1 {
		return f[0].String()
	}
	return fmt.Sprint([]netip.AddrPort(f))
}

// Waiting times after a failed lookup: doubled from the first to the second.
const (
	firstRetry = time.Second
	lastRetry  = 10 * time.Second
	// A refresh is done at most once in this time.
	refreshPause = time.Second
)

// Again is how long an answer about a name is used until it is asked for again. A backend that has moved is found in
// that time, whatever lifetime its records have.
const Again = 5 * time.Second

// Host is a source that looks up a host's addresses (A and AAAA) again and again.
func (r *Resolver) Host(host string, port uint16) Source {
	return &named{resolver: r, host: host, port: port}
}

func members(addrs []netip.Addr, port uint16) []Member {
	all := make([]Member, len(addrs))
	for i, addr := range addrs {
		all[i].Addr = netip.AddrPortFrom(addr, port)
	}
	return all
}

// named is a source behind a name server.
type named struct {
	resolver *Resolver
	host     string
	port     uint16
}

func (n *named) String() string { return net.JoinHostPort(n.host, strconv.Itoa(int(n.port))) }

func (n *named) Watch(ctx context.Context, refresh <-chan struct{}, update func([]Member, error)) {
	retry := backoff.Backoff{First: firstRetry, Most: lastRetry}
	for ctx.Err() == nil {
		asked := time.Now()
		found, err := n.resolver.Lookup(ctx, n.host)
		if ctx.Err() != nil {
			return
		}
		update(members(found, n.port), err)
		wait := Again
		if err != nil {
			wait = retry.Next()
		} else {
			retry.Reset()
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-refresh:
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(asked.Add(refreshPause))):
			}
		}
		timer.Stop()
	}
}
