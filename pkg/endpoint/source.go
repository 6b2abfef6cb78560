package endpoint

import (
	"context"
	"errors"
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
	// Preferred members are taken before the others: those in our own zone.
	Preferred bool
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

// Host is a source that looks up a host's addresses (A and AAAA) and looks again when they expire.
func (r *Resolver) Host(host string, port uint16) Source {
	return &named{
		name:     net.JoinHostPort(host, strconv.Itoa(int(port))),
		resolver: r,
		host:     host,
		lookup: func(ctx context.Context) ([]Member, time.Duration, error) {
			addrs, ttl, err := r.Lookup(ctx, host)
			return members(addrs, port), ttl, err
		},
	}
}

// Service is a source that looks up a service name (SRV), whose records tell hosts and ports. Only records of the
// lowest priority are taken, the others are the fallback; weights are not looked at.
func (r *Resolver) Service(service string) Source {
	return &named{
		name:     "srv:" + service,
		resolver: r,
		host:     service,
		lookup: func(ctx context.Context) ([]Member, time.Duration, error) {
			records, least, err := r.LookupSRV(ctx, service)
			if err != nil {
				return nil, 0, err
			}
			var all []Member
			var failures []error
			for _, record := range records {
				addrs, ttl, err := r.Lookup(ctx, record.Host)
				if err != nil {
					failures = append(failures, err)
					continue
				}
				least = min(least, ttl)
				for _, member := range members(addrs, record.Port) {
					member.Fallback = record.Priority != records[0].Priority
					all = append(all, member)
				}
			}
			if len(all) == 0 {
				return nil, 0, errors.Join(failures...)
			}
			return all, least, nil
		},
	}
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
	name     string
	resolver *Resolver
	host     string
	lookup   func(context.Context) ([]Member, time.Duration, error)
}

func (n *named) String() string { return n.name }

func (n *named) Watch(ctx context.Context, refresh <-chan struct{}, update func([]Member, error)) {
	retry := backoff.Backoff{First: firstRetry, Most: lastRetry}
	for ctx.Err() == nil {
		asked := time.Now()
		found, wait, err := n.lookup(ctx)
		if ctx.Err() != nil {
			return
		}
		update(found, err)
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
			n.resolver.forget(n.host)
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(asked.Add(refreshPause))):
			}
		}
		timer.Stop()
	}
}
