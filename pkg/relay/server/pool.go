// Package server finds the DHCP servers' addresses, the address to which they answer, and whether they answer.
//
// A [Pool] looks the servers' names up regularly and publishes the [Targets] of requests. A server that leaves many
// requests in a row unanswered gets the next ones at its next address.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
)

// Targets are one address of each server, and the address to which servers answer. They are never changed, only
// replaced.
type Targets struct {
	Source netip.Addr // the address to which servers answer: invalid while none is known
	MTU    int        // of the interface that carries Source
	All    []Target
}

// Target is one server's address.
type Target struct {
	Addr   netip.AddrPort
	Server *Server
}

// Config makes a [Pool]. All fields but Interface and Address are needed.
type Config struct {
	// Names are names or addresses, with ":port" where it is not Port.
	Names []string
	Port  uint16
	// IPv6 is the family of all addresses.
	IPv6 bool
	// Interface gives the address to which servers answer: its first. Empty: see Address.
	Interface string
	// Address is the address to which servers answer. Neither: the address from which the kernel sends to the first
	// server.
	Address netip.Addr
	// ResolveInterval is how long an answer about a server's name is used.
	ResolveInterval time.Duration
	// Lookup finds a host's addresses.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// NoName is what Lookup's error wraps where a name does not exist.
	NoName error
	// Optional has the pool be ready while no server's name exists: no replica could do better.
	Optional bool
	// DeadAfter is how many requests in a row a server leaves unanswered, for at least 5 s, until it is taken for dead.
	DeadAfter int
	// Publish takes new targets.
	Publish func(*Targets)
	// Clock is the clock of all times, in nanoseconds, and Wall the wall clock at one of its times.
	Clock func() int64
	Wall  func(at int64) time.Time

	Logger     *slog.Logger
	LogLimiter *loglimit.Limiter
	Metrics    *Metrics
}

// Pool is the servers. Their addresses are looked up, and their health is watched, while it runs.
type Pool struct {
	config    Config
	source    string // what the log calls the address to which servers answer
	servers   []*Server
	unmatched atomic.Int64          // replies that match nothing, since the last one that matched
	why       atomic.Pointer[error] // why the targets are not usable
	kick      chan struct{}
	last      *Targets // the targets that were published last; of Run only
}

// Times of lookups.
const (
	lookupTimeout = 30 * time.Second // a name server that is silent costs five for each name of the search path
	retryLookup   = time.Second      // while there is no usable route
)

var (
	errStarting = errors.New("looking for the servers")
	errNoName   = errors.New("no server's name exists")
)

// New makes a pool. The caller has checked the names by [Split].
func New(config Config) *Pool {
	p := &Pool{config: config, source: "giaddr", kick: make(chan struct{}, 1), last: &Targets{}}
	if config.IPv6 {
		p.source = "upstream_address"
	}
	for _, name := range config.Names {
		host, port, _ := Split(name, config.Port)
		p.servers = append(p.servers, newServer(config.Metrics, name, host, port))
	}
	p.why.Store(&errStarting)
	return p
}

// Servers are the pool's, in the order of their names.
func (p *Pool) Servers() []*Server { return p.servers }

func (p *Pool) portText() string { return strconv.Itoa(int(p.config.Port)) }

// Ready returns an error while no server's address is known, or no address to which servers answer. See
// [Config.Optional].
func (p *Pool) Ready() error {
	err := *p.why.Load()
	if p.config.Optional && errors.Is(err, errNoName) {
		return nil
	}
	return err
}

// Refresh asks for a lookup now.
func (p *Pool) Refresh() {
	select {
	case p.kick <- struct{}{}:
	default: // one is due already
	}
}

// checkEvery is how often the servers' health is looked at.
const checkEvery = 3 * time.Second

// Run looks up until ctx is done.
func (p *Pool) Run(ctx context.Context) error {
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	for {
		next, wait, err := p.lookup(ctx)
		if ctx.Err() != nil {
			return nil
		}
		p.set(next, err)
		if err != nil {
			wait = min(wait, retryLookup)
		}
		if !p.sleep(ctx, check.C, wait) {
			return nil
		}
	}
}

// sleep waits until the next lookup is due, and watches the servers' health meanwhile. It is false when ctx is done.
func (p *Pool) sleep(ctx context.Context, check <-chan time.Time, wait time.Duration) bool {
	due := time.NewTimer(wait)
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-p.kick:
			return true
		case <-due.C:
			return true
		case <-check:
			if p.check(p.config.Clock()) {
				return true
			}
		}
	}
}

// set publishes new targets, and logs changes.
func (p *Pool) set(next *Targets, err error) {
	logger, last, lastErr := p.config.Logger, p.last, *p.why.Load()
	if err != nil && (lastErr == nil || lastErr.Error() != err.Error()) {
		logger.Warn("cannot relay", "error", err.Error())
	}
	if !slices.Equal(last.All, next.All) || last.Source != next.Source {
		p.warnOfSource(next)
		for _, t := range next.All {
			logger.Info("relaying to server", "server", t.Server.name, "address", t.Addr.String(),
				p.source, next.Source.String())
		}
	}
	p.last = next
	p.config.Publish(next)
	p.why.Store(&err)
}

// lookup makes the targets, and tells how long they hold. They may be usable although a server is missing: err is nil
// when at least one server and the address that it answers are known.
func (p *Pool) lookup(ctx context.Context) (next *Targets, wait time.Duration, err error) {
	next, wait = &Targets{}, p.config.ResolveInterval
	var faults []error
	missing := 0
	for _, s := range p.servers {
		addresses, err := p.resolve(ctx, s)
		if err != nil {
			if errors.Is(err, p.config.NoName) {
				missing++
			}
			faults = append(faults, fmt.Errorf("failed to resolve server %s: %w", s.host, err))
			// A name server that is away for a while does not make the DHCP server unreachable.
			addresses, wait = s.known, min(wait, retryLookup)
		}
		s.known = addresses
		if len(addresses) == 0 {
			continue
		}
		next.All = append(next.All, Target{Server: s, Addr: netip.AddrPortFrom(addresses[s.next%len(addresses)], s.port)})
	}
	if len(next.All) == 0 {
		if missing == len(p.servers) {
			faults = append(faults, errNoName)
		}
		return next, wait, errors.Join(faults...)
	}
	for _, fault := range faults {
		p.config.LogLimiter.WarnAt(p.config.Clock(), "failed to look up a server", func() []any {
			return []any{"error", fault.Error()}
		})
	}
	source, err := p.sourceFor(next.All[0].Addr)
	if err != nil {
		return next, wait, err
	}
	next.Source, next.MTU = source, mtuOf(source)
	return next, wait, nil
}

// warnOfSource warns of a common mistake: an address that the servers cannot reach. This host cannot see whether they
// can, but where the kernel would send to them from another address, they often cannot.
func (p *Pool) warnOfSource(next *Targets) {
	for _, t := range next.All {
		source, err := sourceTowards(t.Addr)
		if err != nil || source == next.Source || !next.Source.IsValid() || !Usable(next.Source) {
			continue
		}
		p.config.Logger.Warn("server may be unable to answer", "server", t.Server.name, p.source, next.Source.String(),
			"address_towards_server", source.String(),
			"remedy", "leave UPSTREAM unset, or check the server's route to "+p.source)
	}
}

// defaultMTU is assumed where the interface is not found.
const defaultMTU = 1500

// mtuOf is the MTU of the interface that carries an address.
func mtuOf(address netip.Addr) int {
	links, _ := net.Interfaces()
	for i := range links {
		if has(Prefixes(links[i].Addrs()), address) {
			return links[i].MTU
		}
	}
	return defaultMTU
}

// Prefixes are addresses as package net finds them, with the lengths of their networks; none after an error.
func Prefixes(addresses []net.Addr, _ error) (all []netip.Prefix) {
	for _, each := range addresses {
		if prefix, ok := each.(*net.IPNet); ok {
			address, _ := netip.AddrFromSlice(prefix.IP)
			bits, _ := prefix.Mask.Size()
			all = append(all, netip.PrefixFrom(address.Unmap(), bits))
		}
	}
	return all
}

func has(prefixes []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr() == address })
}

// resolve returns the addresses of a host in the pool's family, in a stable order.
func (p *Pool) resolve(ctx context.Context, s *Server) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	found, err := p.config.Lookup(ctx, s.host)
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(slices.Clone(found), func(a netip.Addr) bool { return !p.inFamily(a) })
	if len(found) == 0 {
		return nil, errors.New("it has no " + p.family() + " address")
	}
	slices.SortFunc(found, netip.Addr.Compare)
	for _, address := range found {
		if why := p.impossible(netip.AddrPortFrom(address, s.port)); why != nil {
			return nil, fmt.Errorf("%s: %w", address, why)
		}
	}
	return found, nil
}

// impossible says why no server can be at an address: it is this relay, or all of a network.
func (p *Pool) impossible(at netip.AddrPort) error {
	for _, own := range Prefixes(net.InterfaceAddrs()) {
		next := at.Addr().Next()
		switch {
		case !at.Addr().Is4() || !own.Contains(at.Addr()) || own.Addr().IsLoopback():
		case own.Addr() == at.Addr() && at.Port() == p.config.Port:
			return errors.New("it is this relay's own address and port")
		case !own.Contains(next) && own.Bits() < 31:
			return errors.New("it is the broadcast address of " + own.String())
		}
	}
	return nil
}

func (p *Pool) inFamily(a netip.Addr) bool { return a.Is6() == p.config.IPv6 && !a.Is4In6() }

func (p *Pool) family() string {
	if p.config.IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// sourceFor is the address to which servers answer.
func (p *Pool) sourceFor(server netip.AddrPort) (netip.Addr, error) {
	config := &p.config
	if config.Address.IsValid() {
		return config.Address, ownAddress(config.Address)
	}
	if config.Interface != "" {
		link, err := net.InterfaceByName(config.Interface)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("no upstream interface %s here", config.Interface)
		}
		address := FirstAddress(link, config.IPv6)
		if !address.IsValid() {
			return netip.Addr{}, fmt.Errorf("upstream interface %s has no %s address", config.Interface, p.family())
		}
		return address, nil
	}
	address, err := sourceTowards(server)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("failed to find %s: no route to server %s: %w", p.source, server, err)
	}
	if !Usable(address) {
		return netip.Addr{}, fmt.Errorf("failed to find %s: towards server %s this host is %s, which no server "+
			"can answer", p.source, server, address)
	}
	return address, nil
}

// FirstAddress is an interface's first address of a family that others can know, invalid if it has none.
func FirstAddress(link *net.Interface, ipv6 bool) netip.Addr {
	for _, each := range Prefixes(link.Addrs()) {
		if each.Addr().Is6() == ipv6 && Usable(each.Addr()) {
			return each.Addr()
		}
	}
	return netip.Addr{}
}

// sourceTowards is the address that the kernel sends from to a server. Nothing is sent.
func sourceTowards(server netip.AddrPort) (netip.Addr, error) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server))
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
	if has(Prefixes(net.InterfaceAddrs()), address) {
		return nil
	}
	return fmt.Errorf("upstream address %s is on no interface here", address)
}
