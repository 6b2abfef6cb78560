package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Ports of DHCP (RFC 2131 section 4.1).
const (
	serverPort = 67
	clientPort = 68
)

// Bounds and defaults of the settings.
const (
	// MaxHops is the hop limit that no setting exceeds (RFC 1542 section 4.1.1).
	MaxHops = 16
	// DefaultHops is the hop limit where none is set.
	DefaultHops = 4

	defaultResolve = 10 * time.Second
	defaultPending = 32768
	defaultExpiry  = 10 * time.Second
)

// Config is what a relay needs to know. Zero values stand for the defaults named.
type Config struct {
	// Listeners are the interfaces on the provisioning VLANs. None: only what arrives at an address of this host
	// is relayed, which takes no packet socket and no CAP_NET_RAW.
	Listeners []string
	// Servers are names or IPv4 addresses, with ":port" where it is not 67. Every request goes to each of them.
	Servers []string
	// UpstreamInterface gives giaddr: its first IPv4 address. Empty: see UpstreamAddress.
	UpstreamInterface string
	// UpstreamAddress is giaddr, an address of this host that the servers reach. Neither it nor
	// UpstreamInterface: the address from which the kernel sends to the first server.
	UpstreamAddress netip.Addr
	// SourceAddress is the source of replies on the listeners. Unset: the listener's own address, or giaddr.
	SourceAddress netip.Addr
	// MaxHops is the most relay agents that a request may have passed, this one included (DefaultHops).
	MaxHops int
	// TrustedRelays are the prefixes whose relay agents may send requests with a giaddr.
	TrustedRelays []netip.Prefix
	// TrustedServers are the prefixes that replies may come from. None: any, since a reply has to match a
	// request, and a Service may have translated its source.
	TrustedServers []netip.Prefix
	// AlwaysBroadcast sends every reply on a listener to everybody, for firmware that does not hear unicasts
	// and does not say so.
	AlwaysBroadcast bool
	// ResolveInterval is how often the servers' names are looked up (10 s).
	ResolveInterval time.Duration
	// Pending is the most requests that are remembered for their replies (32,768).
	Pending int
	// PendingExpiry is how long (10 s).
	PendingExpiry time.Duration

	// Logger may be nil.
	Logger *slog.Logger
	// Registerer takes the metrics. It may be nil.
	Registerer prometheus.Registerer
}

// withDefaults fills in what is unset.
func (c Config) withDefaults() Config {
	if c.MaxHops == 0 {
		c.MaxHops = DefaultHops
	}
	if c.ResolveInterval == 0 {
		c.ResolveInterval = defaultResolve
	}
	if c.Pending == 0 {
		c.Pending = defaultPending
	}
	if c.PendingExpiry == 0 {
		c.PendingExpiry = defaultExpiry
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate joins every fault of the configuration.
func (c Config) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if len(c.Servers) == 0 {
		fault("no server: a relay needs the name or address of a DHCP server")
	}
	for _, server := range c.Servers {
		if _, _, err := splitServer(server); err != nil {
			fault("server %q: %w", server, err)
		}
	}
	seen := map[string]bool{}
	for _, name := range c.Listeners {
		switch {
		case name == "" || len(name) > 15:
			fault("listener %q: not an interface name", name)
		case seen[name]:
			fault("listener %q: named twice", name)
		case name == c.UpstreamInterface:
			fault("listener %q: is the upstream interface too; clients and server on one LAN need no relay", name)
		}
		seen[name] = true
	}
	if c.MaxHops < 0 || c.MaxHops > MaxHops {
		fault("hop limit %d: not within 1 and %d", c.MaxHops, MaxHops)
	}
	for _, a := range []struct {
		what string
		addr netip.Addr
	}{{"upstream address", c.UpstreamAddress}, {"source address", c.SourceAddress}} {
		if a.addr.IsValid() && !usable(a.addr) {
			fault("%s %s: not an IPv4 address that others can reach", a.what, a.addr)
		}
	}
	if c.UpstreamAddress.IsValid() && c.UpstreamInterface != "" {
		fault("upstream address %s and upstream interface %s: set one of them", c.UpstreamAddress, c.UpstreamInterface)
	}
	if c.Pending < 0 || c.Pending > 1<<24 {
		fault("pending limit %d: not within 1 and %d", c.Pending, 1<<24)
	}
	if c.ResolveInterval < 0 || c.PendingExpiry < 0 {
		fault("a time span is negative")
	}
	return errors.Join(faults...)
}

// usable tells an address that can stand in giaddr or as the source of a reply: IPv4, and not loopback (trap of
// the incumbent: 127.1.1.1), unspecified or a group.
func usable(a netip.Addr) bool {
	return a.Is4() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsMulticast() && a.As4() != limitedBroadcast
}

// splitServer parses "host" or "host:port".
func splitServer(s string) (host string, port uint16, err error) {
	host, port = s, serverPort
	if h, p, splitErr := net.SplitHostPort(s); splitErr == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("port %q is not within 1 and 65535", p)
		}
		host, port = h, uint16(n)
	}
	if host == "" {
		return "", 0, errors.New("no host")
	}
	if addr, err := netip.ParseAddr(host); err == nil && !addr.Is4() {
		return "", 0, errors.New("not IPv4: DHCPv6 is another protocol, which this relay does not speak")
	}
	return host, port, nil
}
