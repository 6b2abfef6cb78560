package relay6

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/relay/bounds"
	"github.com/tinkerbell/stack/pkg/relay/fault"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// Ports of DHCPv6 (RFC 9915 section 7.2).
const (
	serverPort = 547 // of servers and relay agents
	clientPort = 546
)

// maxText is the most bytes of an option's value: all of them have to fit in front of a message.
const maxText = 48

// Listener is an interface on a provisioning VLAN.
type Listener struct {
	Name string
	// LinkAddress is the link address of messages that arrive here (RFC 9915 section 19.1.1): an address of the VLAN's
	// prefix, by which the server finds the link. Unset: the interface's own address that is not link-local. Without that
	// it is unspecified, and the server has to find the link by the Interface-Id, which is the interface's name.
	LinkAddress netip.Addr
}

// Option is an option that this relay can add to a RELAY-FORW, besides Interface-Id and the client's link-layer
// address.
type Option string

// The options by their names in the RFCs.
const (
	RemoteID     Option = "remote-id"     // RFC 4649: Config.RemoteID, or the listener's MAC address
	SubscriberID Option = "subscriber-id" // RFC 4580: Config.SubscriberID
	RelayID      Option = "relay-id"      // RFC 5460: Config.RelayID, or a DUID of the listener's MAC address
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Option) UnmarshalText(text []byte) error {
	switch got := Option(text); got {
	case RemoteID, SubscriberID, RelayID:
		*o = got
		return nil
	default:
		return fmt.Errorf("%q is none of %s, %s, %s", text, RemoteID, SubscriberID, RelayID)
	}
}

// Config has the settings of a relay. Zero values stand for the defaults named.
type Config struct {
	// Listeners are the interfaces on the provisioning VLANs. None: only messages that relay agents send to an address of
	// this host are relayed, which takes no packet socket and no CAP_NET_RAW.
	Listeners []Listener
	// Servers are names or IPv6 addresses, with ":port" where it is not 547. Every request goes to each of them.
	Servers []string
	// UpstreamInterface gives the address that requests leave from: its first. Empty: see UpstreamAddress.
	UpstreamInterface string
	// UpstreamAddress is the address that requests leave from: one of this host that the servers reach. Neither: the
	// address from which the kernel sends to the first server.
	UpstreamAddress netip.Addr
	// TrustedRelays are the prefixes whose relay agents may send RELAY-FORW messages.
	TrustedRelays []netip.Prefix
	// TrustedServers are the prefixes that replies may come from. None: any, since a reply has to match a request, and
	// a Service may have translated its source.
	TrustedServers []netip.Prefix
	// Options are added to each RELAY-FORW, where they fit the MTU.
	Options []Option
	// RemoteID and SubscriberID are values of the options of these names, and RelayID is a DUID.
	RemoteID, SubscriberID string
	RelayID                []byte
	// Enterprise is the enterprise number in front of the Remote-Id (RFC 4649 section 3).
	Enterprise uint32
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
	c.Bounds = c.WithDefaults()
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
		add("Servers", "a relay needs the name or address of a DHCPv6 server")
	}
	for _, name := range c.Servers {
		if err := checkServer(name); err != nil {
			add("Servers", "%q: %v", name, err)
		}
	}
	seen := map[string]bool{}
	for _, l := range c.Listeners {
		switch {
		case l.Name == "" || len(l.Name) > maxName:
			add("Listeners", "%q: not an interface name", l.Name)
		case l.Name == unicastLabel:
			add("Listeners", "%q: is what metrics call an address of this host", l.Name)
		case seen[l.Name]:
			add("Listeners", "%q: named twice", l.Name)
		case l.LinkAddress.IsValid() && !usable(l.LinkAddress):
			add("LinkAddresses", "%s=%s: not an IPv6 address of a link's prefix", l.Name, l.LinkAddress)
		}
		seen[l.Name] = true
	}
	if c.UpstreamAddress.IsValid() && !usable(c.UpstreamAddress) {
		add("UpstreamAddress", "%s: not an IPv6 address that others can reach", c.UpstreamAddress)
	}
	if c.UpstreamAddress.IsValid() && c.UpstreamInterface != "" {
		add("UpstreamAddress", "%s, and upstream interface %s: set one of them", c.UpstreamAddress, c.UpstreamInterface)
	}
	faults = append(faults, c.validateOptions()...)
	return errors.Join(append(faults, c.Faults()...)...)
}

// maxName is the longest name of an interface (IFNAMSIZ without its end).
const maxName = 15

func (c Config) validateOptions() (faults []error) {
	named := map[Option]bool{}
	for _, option := range c.Options {
		if named[option] {
			faults = append(faults, fault.New("Options", "%s is named twice", option))
		}
		named[option] = true
	}
	for _, text := range []struct {
		field string
		len   int
	}{{"RemoteID", len(c.RemoteID)}, {"SubscriberID", len(c.SubscriberID)}, {"RelayID", len(c.RelayID)}} {
		if text.len > maxText {
			faults = append(faults, fault.New(text.field, "%d bytes, DHCPv6 takes at most %d", text.len, maxText))
		}
	}
	if named[SubscriberID] && c.SubscriberID == "" {
		faults = append(faults, fault.New("SubscriberID", "has no value, and subscriber-id is asked for"))
	}
	return faults
}

// usable tells whether hosts beyond its link can reach an IPv6 address.
func usable(a netip.Addr) bool { return a.Is6() && a.Zone() == "" && server.Usable(a) }

// checkServer returns the fault of a server's name.
func checkServer(name string) error {
	host, _, err := server.Split(name, serverPort)
	if err != nil {
		return err
	}
	if addr, err := netip.ParseAddr(host); err == nil && !usable(addr) {
		return errors.New("not an IPv6 address that is reached beyond its link")
	}
	return nil
}
