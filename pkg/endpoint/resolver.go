package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
)

// ErrNotFound says that a name has no address, under itself or any name of the search path.
var ErrNotFound = errors.New("no such name")

// Resolver looks names up as Go's resolver does: /etc/hosts, then the name servers and the search path of
// /etc/resolv.conf, which is read again when it changes. It remembers nothing. The zero value is ready for use.
type Resolver struct {
	// Dial connects to a name server in place of those of resolv.conf; nil is theirs.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Lookup returns the addresses of a host, sorted. The error wraps [ErrNotFound] when every name server agrees that
// there is none.
func (r *Resolver) Lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	found, err := r.ask(ctx, host, false)
	if notFound(err) {
		// A name of the search path that exists nowhere hides one whose zone is broken, and may have it.
		found, err = r.ask(ctx, host, true)
	}
	switch {
	case notFound(err):
		return nil, fmt.Errorf("failed to look up %s: %w", host, ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("failed to look up: %w", err)
	}
	for i := range found {
		found[i] = found[i].Unmap()
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return slices.Compact(found), nil
}

// ask asks once. Strict makes a name server's failure about one name or type that of the lookup.
func (r *Resolver) ask(ctx context.Context, host string, strict bool) ([]netip.Addr, error) {
	resolver := &net.Resolver{PreferGo: true, StrictErrors: strict, Dial: r.Dial}
	return resolver.LookupNetIP(ctx, "ip", host)
}

func notFound(err error) bool {
	said, ok := errors.AsType[*net.DNSError](err)
	return ok && said.IsNotFound
}
