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
	mtu     int // of the interface that carries giaddr
	targets []target
}

// target is where one server is.
type target struct {
	peer
	server *server
	detour *socket // where requests leave by another port, else nil
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
	kick  chan struct{}
	// detour is the socket of the routes' detours; stale is the one before, until no route names it any more.
	detour, stale *socket
}

// Times of lookups.
const (
	lookupTimeout = 5 * time.Second
	retryLookup   = time.Second // while there is no usable route
)

var errStarting = errors.New("looking for the servers")

func newServers(r *Relay) *servers {
	s := &servers{relay: r, kick: make(chan struct{}, 1)}
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

// checkEvery is how often the servers' health is looked at.
const checkEvery = time.Second

// run looks up until ctx is done.
func (s *servers) run(ctx context.Context) error {
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	defer func() {
		closeSocket(&s.detour)
		closeSocket(&s.stale)
	}()
	for {
		next, wait, err := s.lookup(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.set(next, err)
		closeSocket(&s.stale)
		if err != nil {
			wait = min(wait, retryLookup)
		}
		if !s.sleep(ctx, check.C, wait) {
			return nil
		}
	}
}

// sleep waits until the next lookup is due, and watches the servers' health meanwhile. It is false when ctx is done.
func (s *servers) sleep(ctx context.Context, check <-chan time.Time, wait time.Duration) bool {
	due := time.NewTimer(wait)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-s.kick:
			return true
		case <-due.C:
			return true
		case <-check:
			if s.relay.health.check(s.relay.now()) {
				s.stale, s.detour = s.detour, nil // a new one has a new port
				return true
			}
		}
	}
}

func closeSocket(s **socket) {
	if *s != nil {
		_ = (*s).Close()
		*s = nil
	}
}

// set publishes new routes, and logs what changed.
func (s *servers) set(next *routes, err error) {
	logger, last, lastErr := s.relay.logger, s.relay.routes.Load(), s.ready()
	if err != nil && (lastErr == nil || lastErr.Error() != err.Error()) {
		logger.Warn("cannot relay", "error", err.Error())
	}
	if !slices.Equal(last.targets, next.targets) || last.giaddr != next.giaddr {
		s.warnOfGiaddr(next)
		for _, t := range next.targets {
			logger.Info("relaying to server", "server", t.server.name, "address", t.String(),
				"giaddr", netip.AddrFrom4(next.giaddr).String())
		}
	}
	s.relay.routes.Store(next)
	s.why.Store(&err)
}

// lookup makes routes, and tells how long they hold. They may be usable although a server is missing: err is nil when
// at least one server and giaddr are known.
func (s *servers) lookup(ctx context.Context) (next *routes, wait time.Duration, err error) {
	next, wait = &routes{}, s.relay.config.ResolveInterval
	var faults []error
	for _, server := range s.relay.health.servers {
		addresses, ttl, err := s.resolve(ctx, server.host)
		if err != nil {
			faults = append(faults, fmt.Errorf("failed to resolve server %s: %w", server.host, err))
			// A name server that is away for a while does not make the DHCP server unreachable.
			addresses, ttl = server.known, retryLookup
		}
		wait = min(wait, ttl)
		server.known = addresses
		if len(addresses) == 0 {
			continue
		}
		to := target{
			server: server,
			peer:   peer{ip: addresses[server.next%len(addresses)].As4(), port: server.port},
		}
		if server.detour {
			to.detour = s.openDetour()
		}
		next.targets = append(next.targets, to)
	}
	if len(next.targets) == 0 {
		return next, wait, errors.Join(faults...)
	}
	for _, fault := range faults {
		s.relay.notices.warn(s.relay.now(), "failed to look up a server", func() []any {
			return []any{"error", fault.Error()}
		})
	}
	giaddr, err := s.giaddr(next.targets[0].peer)
	if err != nil {
		return next, wait, err
	}
	next.giaddr, next.mtu = giaddr.As4(), mtuOf(giaddr)
	return next, wait, nil
}

// openDetour opens the detour unless it is open. Without one, requests leave by port 67.
func (s *servers) openDetour() *socket {
	if s.detour == nil {
		detour, err := openDetour()
		if err != nil {
			s.relay.notices.warn(s.relay.now(), "failed to open another source port", func() []any {
				return []any{"error", err.Error()}
			})
			return nil
		}
		s.detour = detour
	}
	return s.detour
}

// warnOfGiaddr is for the third classic mistake: a giaddr that the servers cannot reach. Whether they can only they
// know, but where the kernel would send from another address, they often cannot.
func (s *servers) warnOfGiaddr(next *routes) {
	giaddr := netip.AddrFrom4(next.giaddr)
	for _, t := range next.targets {
		source, err := sourceTowards(t.peer)
		if err == nil && source != giaddr && usable(giaddr) {
			s.relay.logger.Warn("server may be unable to reach giaddr", "server", t.server.name, "giaddr", giaddr.String(),
				"address_towards_server", source.String(),
				"remedy", "leave UPSTREAM_ADDRESS and UPSTREAM_INTERFACE unset, or check the server's route to giaddr")
		}
	}
}

// defaultMTU is assumed where the interface is not found.
const defaultMTU = 1500

// mtuOf is the MTU of the interface that carries an address.
func mtuOf(address netip.Addr) int {
	links, err := net.Interfaces()
	if err != nil {
		return defaultMTU
	}
	for i := range links {
		addresses, err := links[i].Addrs()
		if err != nil {
			continue
		}
		for _, each := range addresses {
			if prefix, ok := each.(*net.IPNet); ok && prefix.IP.Equal(address.AsSlice()) {
				return links[i].MTU
			}
		}
	}
	return defaultMTU
}

// resolve returns the IPv4 addresses of a host, in a stable order, and for how long they hold.
func (s *servers) resolve(ctx context.Context, host string) ([]netip.Addr, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, ttl, err := s.relay.config.Lookup(ctx, host)
	if err != nil {
		return nil, 0, err
	}
	found = slices.DeleteFunc(slices.Clone(found), func(a netip.Addr) bool { return !a.Is4() })
	if len(found) == 0 {
		return nil, 0, errors.New("it has no IPv4 address")
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found, ttl, nil
}

// giaddr is the address that servers answer.
func (s *servers) giaddr(server peer) (netip.Addr, error) {
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
func sourceTowards(server peer) (netip.Addr, error) {
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
