package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/relay/bounds"
	"github.com/tinkerbell/stack/pkg/relay/fault"
	"github.com/tinkerbell/stack/pkg/relay/server"
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
)

// Listener is an interface on a provisioning VLAN.
type Listener struct {
	Name string
	// LinkAddress goes into option 82's link selection (RFC 3527): an address of the VLAN's subnet. Unset: the
	// interface's own.
	LinkAddress netip.Addr
}

// ParseListener reads "name" or "name=link address".
func ParseListener(s string) (Listener, error) {
	name, link, found := strings.Cut(s, "=")
	l := Listener{Name: name}
	if !found {
		return l, nil
	}
	address, err := netip.ParseAddr(link)
	if err != nil {
		return l, fmt.Errorf("listener %q: failed to parse link address: %w", name, err)
	}
	l.LinkAddress = address
	return l, nil
}

// Config has the settings of a relay. Zero values stand for the defaults named.
type Config struct {
	// Listeners are the interfaces on the provisioning VLANs. None: only requests to an address of this host are relayed,
	// which takes no packet socket and no CAP_NET_RAW.
	Listeners []Listener
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
	// TrustedListeners are the listeners on which a client's own option 82 is accepted (RFC 3046 section 2.1).
	TrustedListeners []string
	// PresentGiaddr is the action on a request that carries a giaddr or option 82 already.
	PresentGiaddr Action
	// Agent describes the option 82 that this relay adds.
	Agent Agent
	// ClearGiaddr takes giaddr out of replies, for firmware that takes it for a gateway.
	ClearGiaddr bool
	// TrustedServers are the prefixes that replies may come from. None: any, since a reply has to match a
	// request, and a Service may have translated its source.
	TrustedServers []netip.Prefix
	// AlwaysBroadcast broadcasts every reply on a listener, for firmware that cannot receive unicasts and does not set
	// the broadcast flag.
	AlwaysBroadcast bool
	// Lookup finds a host's addresses, and for how long they hold. Nil: as the pod's resolv.conf says.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, time.Duration, error)
	bounds.Bounds

	// Event is called with an event for every message: the machine that it describes, and whether it was relayed. The
	// event is valid during the call. Event is called from several goroutines and must not block. It may be nil.
	Event func(*boot.Event)

	// Logger may be nil.
	Logger *slog.Logger
	// Registerer takes the metrics. It may be nil.
	Registerer prometheus.Registerer
}

// withDefaults sets the fields that are zero to their defaults.
func (c Config) withDefaults() Config {
	if c.MaxHops == 0 {
		c.MaxHops = DefaultHops
	}
	c.Bounds = c.WithDefaults()
	if c.PresentGiaddr == "" {
		c.PresentGiaddr = Forward
	}
	if c.Lookup == nil {
		c.Lookup = (&endpoint.Resolver{Logger: c.Logger}).Lookup
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Validate joins every fault of the configuration.
func (c Config) Validate() error {
	var faults []error
	add := func(field, format string, args ...any) { faults = append(faults, fault.New(field, format, args...)) }
	if len(c.Servers) == 0 {
		add("Servers", "a relay needs the name or address of a DHCP server")
	}
	for _, name := range c.Servers {
		if err := checkServer(name); err != nil {
			add("Servers", "%q: %v", name, err)
		}
	}
	faults = append(faults, c.validateListeners()...)
	faults = append(faults, c.validateAgent()...)
	if c.MaxHops < 0 || c.MaxHops > MaxHops {
		add("MaxHops", "%d: not within 1 and %d", c.MaxHops, MaxHops)
	}
	for _, a := range []struct {
		field string
		addr  netip.Addr
	}{{"UpstreamAddress", c.UpstreamAddress}, {"SourceAddress", c.SourceAddress}} {
		if a.addr.IsValid() && !usable(a.addr) {
			add(a.field, "%s: not an IPv4 address that others can reach", a.addr)
		}
	}
	if c.UpstreamAddress.IsValid() && c.UpstreamInterface != "" {
		add("UpstreamAddress", "%s, and upstream interface %s: set one of them", c.UpstreamAddress, c.UpstreamInterface)
	}
	return errors.Join(append(faults, c.Faults()...)...)
}

func (c Config) validateListeners() (faults []error) {
	seen := map[string]bool{}
	for _, l := range c.Listeners {
		switch {
		case l.Name == "" || len(l.Name) > 15:
			faults = append(faults, fault.New("Listeners", "%q: not an interface name", l.Name))
		case l.Name == unicastLabel:
			faults = append(faults, fault.New("Listeners", "%q: is what metrics call an address of this host", l.Name))
		case seen[l.Name]:
			faults = append(faults, fault.New("Listeners", "%q: named twice", l.Name))
		case l.Name == c.UpstreamInterface:
			faults = append(faults, fault.New("Listeners", "%q: is the upstream interface too; where clients and servers "+
				"share a LAN no relay is needed", l.Name))
		case l.LinkAddress.IsValid() && !usable(l.LinkAddress):
			faults = append(faults, fault.New("Listeners", "%q: link address %s is not an IPv4 address of a LAN",
				l.Name, l.LinkAddress))
		}
		seen[l.Name] = true
	}
	for _, name := range c.TrustedListeners {
		if !seen[name] {
			faults = append(faults, fault.New("TrustedListeners", "%q: not a listener", name))
		}
	}
	return faults
}

// usable tells whether an address can be a giaddr, or the source of a reply.
func usable(a netip.Addr) bool { return a.Is4() && server.Usable(a) }

// checkServer returns the fault of a server's name.
func checkServer(name string) error {
	host, _, err := server.Split(name, serverPort)
	if err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(host); err == nil && !addr.Is4() {
		return errors.New("not IPv4: DHCPv6 has servers of its own")
	}
	return nil
}
