package relay

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// routes is where requests go: one address of each server, and the address that they answer. It is never changed,
// only replaced.
type routes struct {
	giaddr  [4]byte
	targets []target
}

// target is where one server is.
type target struct {
	endpoint
	name string
}

// usable tells why no request can be relayed, if so.
func (r *routes) usable() Drop {
	switch {
	case len(r.targets) == 0:
		return NoServer
	case r.giaddr == [4]byte{}:
		return NoGiaddr
	}
	return None
}

// servers finds the servers' addresses and giaddr, again and again.
type servers struct {
	relay *Relay
	why   atomic.Pointer[error] // why the routes are not usable
	known [][]netip.Addr        // the last good answer for each server
	kick  chan struct{}
}

// Times of lookups.
const (
	lookupTimeout = 5 * time.Second
	retryLookup   = time.Second // while there is no usable route
)

var errStarting = errors.New("looking for the servers")

func newServers(r *Relay) *servers {
	s := &servers{relay: r, known: make([][]netip.Addr, len(r.config.Servers)), kick: make(chan struct{}, 1)}
	s.why.Store(&errStarting)
	return s
}

func (s *servers) ready() error { return *s.why.Load() }

// refresh asks for a lookup now.
func (s *servers) refresh() {
	select {
	case s.kick <- struct{}{}:
	default: // one is due already
	}
}

// run looks up until ctx is done.
func (s *servers) run(ctx context.Context) error {
	for {
		next, err := s.lookup(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.set(next, err)
		wait := s.relay.config.ResolveInterval
		if err != nil {
			wait = min(wait, retryLookup)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.kick:
		case <-time.After(wait):
		}
	}
}

// set publishes new routes, and logs what changed.
func (s *servers) set(next *routes, err error) {
	logger, last, lastErr := s.relay.logger, s.relay.routes.Load(), s.ready()
	if err != nil && (lastErr == nil || lastErr.Error() != err.Error()) {
		logger.Warn("cannot relay", "error", err)
	}
	if !slices.Equal(last.targets, next.targets) || last.giaddr != next.giaddr {
		for _, t := range next.targets {
			logger.Info("relaying to server", "server", t.name, "address", t.endpoint.String(),
				"giaddr", netip.AddrFrom4(next.giaddr).String())
		}
	}
	s.relay.routes.Store(next)
	s.why.Store(&err)
}

// lookup makes routes. They may be usable although err tells that something is missing: err is nil when at least one
// server and giaddr are known.
func (s *servers) lookup(ctx context.Context) (*routes, error) {
	next := &routes{}
	var faults []error
	for i, server := range s.relay.config.Servers {
		host, port, err := splitServer(server)
		if err != nil {
			return next, err // New has checked
		}
		addresses, err := resolve(ctx, host)
		if err != nil {
			faults = append(faults, fmt.Errorf("failed to resolve server %s: %w", host, err))
			// A name server that is away for a while does not make the DHCP server unreachable.
			addresses = s.known[i]
		}
		s.known[i] = addresses
		if len(addresses) > 0 {
			next.targets = append(next.targets, target{
				name:     server,
				endpoint: endpoint{ip: addresses[0].As4(), port: port},
			})
		}
	}
	if len(next.targets) == 0 {
		return next, errors.Join(faults...)
	}
	for _, fault := range faults {
		s.relay.notices.warn(s.relay.now(), "failed to look up a server", func() []any { return []any{"error", fault} })
	}
	giaddr, err := s.giaddr(next.targets[0].endpoint)
	if err != nil {
		return next, err
	}
	next.giaddr = giaddr.As4()
	return next, nil
}

// resolve returns the IPv4 addresses of a name, in a stable order.
func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
	if err != nil {
		return nil, err
	}
	for i := range found {
		found[i] = found[i].Unmap()
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found, nil
}

// giaddr is the address that servers answer.
func (s *servers) giaddr(server endpoint) (netip.Addr, error) {
	config := s.relay.config
	if config.UpstreamAddress.IsValid() {
		return config.UpstreamAddress, ownAddress(config.UpstreamAddress)
	}
	if config.UpstreamInterface != "" {
		link, err := net.InterfaceByName(config.UpstreamInterface)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("no upstream interface %s here", config.UpstreamInterface)
		}
		address := firstAddress(link)
		if !address.IsValid() {
			return netip.Addr{}, fmt.Errorf("upstream interface %s has no IPv4 address", config.UpstreamInterface)
		}
		return address, nil
	}
	address, err := sourceTowards(server)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("failed to find giaddr: no route to server %s: %w", server, err)
	}
	if !usable(address) {
		return netip.Addr{}, fmt.Errorf("failed to find giaddr: towards server %s this host is %s, which no server "+
			"can answer", server, address)
	}
	return address, nil
}

// sourceTowards is the address that the kernel sends from to a server. Nothing is sent.
func sourceTowards(server endpoint) (netip.Addr, error) {
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(
		netip.AddrPortFrom(netip.AddrFrom4(server.ip), server.port)))
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, fmt.Errorf("unexpected address %v", conn.LocalAddr())
	}
	return local.AddrPort().Addr().Unmap(), nil
}

// ownAddress is nil if an interface of this namespace carries the address.
func ownAddress(address netip.Addr) error {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return fmt.Errorf("failed to list own addresses: %w", err)
	}
	for _, each := range addresses {
		if prefix, ok := each.(*net.IPNet); ok {
			if own, ok := netip.AddrFromSlice(prefix.IP); ok && own.Unmap() == address {
				return nil
			}
		}
	}
	return fmt.Errorf("upstream address %s is on no interface here", address)
}
