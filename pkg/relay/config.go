package relay

import (
	"cmp"
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
	"github.com/tinkerbell/stack/pkg/relay/server"
)

const (
	// MaxHops is the hop limit that no setting exceeds (RFC 1542 section 4.1.1).
	MaxHops = 16
	// DefaultHops is the hop limit where none is set.
	DefaultHops = 4
	// MinTokenKey is the least length of a token key in bytes.
	MinTokenKey = 16

	maxName = 15 // of an interface (IFNAMSIZ without its end)
)

// Listener is an interface on a provisioning VLAN.
type Listener struct {
	Name string
	// LinkAddress is an address of the VLAN's subnet, by which the server finds the link: in option 82's link selection
	// (RFC 3527), or as the link address of a RELAY-FORW (RFC 9915 section 19.1.1). Unset: the interface's own. DHCPv6
	// without either has none, and the server has to find the link by the Interface-Id, which is the interface's name.
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
	// IPv6 has it relay DHCPv6.
	IPv6 bool
	// Listeners are the interfaces on the provisioning VLANs. None: only requests to an address of this host are relayed,
	// which takes no packet socket and no CAP_NET_RAW.
	Listeners []Listener
	// Servers are names or addresses of the family, with ":port" where it is not 67 or 547. Every request goes to each of
	// them.
	Servers []string
	// UpstreamInterface gives the address to which servers answer: its first. Empty: see UpstreamAddress.
	UpstreamInterface string
	// UpstreamAddress is the address to which servers answer, which is giaddr: one of this host that they reach. Neither
	// it nor UpstreamInterface: the address from which the kernel sends to the first server.
	UpstreamAddress netip.Addr
	// TrustedRelays are the prefixes whose relay agents may send requests with a giaddr, or RELAY-FORW messages.
	TrustedRelays []netip.Prefix
	// TrustedServers are the prefixes that replies may come from. None: any, since a reply has to match a
	// request, and a Service may have translated its source.
	TrustedServers []netip.Prefix
	// ServersOptional has the relay be ready while no server's name exists.
	ServersOptional bool
	// TokenKey, if set, signs a token that a server repeats: in option 82, of DHCPv6 behind the name in the Interface-Id.
	// By it a reply is recognised even when the request was relayed by another replica or before a restart. A reply to a
	// request that took a token with it has to bring it back. Replicas share the key, of at least MinTokenKey bytes.
	TokenKey []byte

	// The rest, up to Limits, is for DHCPv4 alone.

	// AgentOptions are the sub-options of option 82 that this relay adds.
	AgentOptions []SubOption
	// SourceAddress is the source of replies on the listeners. Unset: the listener's own address, or giaddr.
	SourceAddress netip.Addr
	// MaxHops is the most relay agents that a request may have passed, this one included (DefaultHops).
	MaxHops int
	// TrustedListeners are the listeners on which a client's own option 82 is accepted (RFC 3046 section 2.1).
	TrustedListeners []string
	// ClearGiaddr takes giaddr out of replies, for firmware that takes it for a gateway.
	ClearGiaddr bool
	// AlwaysBroadcast broadcasts every reply on a listener, for firmware that cannot receive unicasts and does not set
	// the broadcast flag.
	AlwaysBroadcast bool

	Limits

	// Lookup finds a host's addresses. Nil: as the pod's resolv.conf says.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Event is called with an event for every message: the machine that it describes, and whether it was relayed. The
	// event is valid during the call. Event is called from several goroutines and must not block. It may be nil.
	Event func(*boot.Event)
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer takes the metrics. It may be nil.
	Registerer prometheus.Registerer
}

// Limits bound a relay's memory, rates and times. Zero is the default, which is in brackets. Nobody can choose better,
// so that only tests set them.
type Limits struct {
	// ResolveInterval is how long an answer about a server's name is used (10 s: a server that has moved is found before
	// firmware gives up).
	ResolveInterval time.Duration
	// Pending is the most requests that are remembered for their replies (32,768: those of 3,000 machines a second for
	// PendingExpiry; 5 MiB when all are used).
	Pending int
	// PendingExpiry is how long (10 s: no server answers later, and firmware has asked again by then).
	PendingExpiry time.Duration
	// ClientRate is how many requests a second one chaddr may send on a listener, and in unicasts of one sender, over two
	// seconds; of DHCPv6 one MAC address, and one DUID (10: of 520 captured clients none sends more than 5). Negative: no
	// limit.
	ClientRate int
	// TotalRate is how many requests a second are relayed of all listeners, and as many unicasts (50,000: more than
	// servers answer). Negative: no limit.
	TotalRate int
	// NewcomerRate is how many requests a second of machines that were never served go to the servers from each
	// listener, and of unicasts, beyond those that the servers answer (100: what Smee answers from the Kubernetes API).
	// Negative: no limit.
	NewcomerRate int
	// DeadAfter is how many requests in a row a server leaves unanswered, for at least 5 s, until it is taken for
	// dead: its name is looked up again, and its next address is asked (30: three machines' boots).
	DeadAfter int
	// TracePackets is how many packets are kept for the trace (512: what twenty boots send, less than 1 MiB).
	TracePackets int
}

func (l Limits) withDefaults() Limits {
	l.ResolveInterval = cmp.Or(l.ResolveInterval, 10*time.Second)
	l.Pending = cmp.Or(l.Pending, 32768)
	l.PendingExpiry = cmp.Or(l.PendingExpiry, 10*time.Second)
	l.ClientRate = cmp.Or(l.ClientRate, 10)
	l.TotalRate = cmp.Or(l.TotalRate, 50000)
	l.NewcomerRate = cmp.Or(l.NewcomerRate, 100)
	l.DeadAfter = cmp.Or(l.DeadAfter, 30)
	l.TracePackets = cmp.Or(l.TracePackets, 512)
	return l
}

// withDefaults sets the fields that are zero to their defaults.
func (c Config) withDefaults() Config {
	c.Limits = c.Limits.withDefaults()
	c.MaxHops = cmp.Or(c.MaxHops, DefaultHops)
	if c.Lookup == nil {
		c.Lookup = (&endpoint.Resolver{}).Lookup
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return c
}

// faults collects the faults of a configuration, each behind the name of the setting that has to be changed.
type faults []error

func (f *faults) add(setting, format string, args ...any) {
	*f = append(*f, fmt.Errorf(setting+": "+format, args...))
}

// Validate joins every fault of the configuration. Each begins with a setting's name, without its program's prefix.
func (c Config) Validate() error {
	var found faults
	servers := "SERVERS"
	if c.IPv6 {
		servers = "DHCPV6_SERVERS"
	}
	if len(c.Servers) == 0 {
		found.add(servers, "a relay needs the name or address of a DHCP server")
	}
	for _, name := range c.Servers {
		if err := c.checkServer(name); err != nil {
			found.add(servers, "%q: %v", name, err)
		}
	}
	c.validateListeners(&found)
	c.validateAgent(&found)
	if c.MaxHops < 0 || c.MaxHops > MaxHops {
		found.add("MAX_HOPS", "%d: not within 1 and %d", c.MaxHops, MaxHops)
	}
	if c.UpstreamAddress.IsValid() && !c.usable(c.UpstreamAddress) {
		found.add("UPSTREAM", "%s: not an %s address that others can reach", c.UpstreamAddress, c.network())
	}
	if c.SourceAddress.IsValid() && !c.usable(c.SourceAddress) {
		found.add("SOURCE_ADDRESS", "%s: not an %s address that others can reach", c.SourceAddress, c.network())
	}
	if c.UpstreamAddress.IsValid() && c.UpstreamInterface != "" {
		found.add("UPSTREAM", "%s, and upstream interface %s: set one of them",
			c.UpstreamAddress, c.UpstreamInterface)
	}
	if n := len(c.TokenKey); n > 0 && n < MinTokenKey {
		found.add("TOKEN_KEY", "%d bytes, at least %d are needed", n, MinTokenKey)
	}
	return errors.Join(found...)
}

func (c *Config) validateListeners(found *faults) {
	seen, links := map[string]bool{}, "LISTENERS"
	if c.IPv6 {
		links = "DHCPV6_LINK_ADDRESSES"
	}
	for _, l := range c.Listeners {
		switch {
		case l.Name == "" || len(l.Name) > maxName:
			found.add("LISTENERS", "%q: not an interface name", l.Name)
		case l.Name == unicastLabel:
			found.add("LISTENERS", "%q: is what metrics call an address of this host", l.Name)
		case seen[l.Name]:
			found.add("LISTENERS", "%q: named twice", l.Name)
		case l.Name == c.UpstreamInterface && !c.IPv6:
			found.add("LISTENERS", "%q: is the upstream interface too; where clients and servers "+
				"share a LAN no relay is needed", l.Name)
		case l.LinkAddress.IsValid() && !c.usable(l.LinkAddress):
			found.add(links, "%s=%s: not an %s address of a LAN", l.Name, l.LinkAddress, c.network())
		}
		seen[l.Name] = true
	}
	for _, name := range c.TrustedListeners {
		if !seen[name] {
			found.add("TRUSTED_LISTENERS", "%q: not a listener", name)
		}
	}
}

// network is the name of the family.
func (c *Config) network() string {
	if c.IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// usable tells whether hosts beyond its link can reach an address of the family.
func (c *Config) usable(a netip.Addr) bool {
	return a.Is6() == c.IPv6 && a.Zone() == "" && server.Usable(a)
}

// checkServer returns the fault of a server's name.
func (c *Config) checkServer(name string) error {
	host, _, err := server.Split(name, 1)
	if err != nil {
		return err
	}
	addr, _ := netip.ParseAddr(host)
	switch {
	case !addr.IsValid(): // a name
	case addr.Is6() != c.IPv6:
		return fmt.Errorf("no %s address: the other family has servers of its own", c.network())
	case !c.IPv6 && (addr.IsUnspecified() || addr.IsMulticast() || addr == netip.AddrFrom4([4]byte{255, 255, 255, 255})):
		return errors.New("not an address that a server can have")
	case c.IPv6 && (addr.Zone() != "" || !server.Usable(addr)):
		return errors.New("not an IPv6 address that is reached beyond its link")
	}
	return nil
}
