package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/relay"
)

const (
	prefix       = "DHCP_RELAY"
	defaultAdmin = ":9067" // as in the tag below
)

// settings is what the environment sets.
type settings struct {
	daemon.Settings
	AdminAddress string        `split_words:"true" default:":9067" desc:"where /metrics, /healthz and /readyz are served"`
	DrainGrace   time.Duration `split_words:"true" default:"0s" desc:"after SIGTERM, how long it relays and is ready as before: as long as the stack-proxy in its pod"`

	Listeners       []listener `default:"macvlan0" desc:"interfaces on the provisioning VLANs, separated by commas; name=address gives a link address for option 82; none: only requests sent to an address of this pod (no NET_RAW)"`
	AlwaysBroadcast bool       `split_words:"true" default:"false" desc:"broadcast every reply, for firmware that does not hear unicasts and does not say so"`
	ClearGiaddr     bool       `split_words:"true" default:"false" desc:"take giaddr out of replies, for firmware that takes it for a gateway"`
	SourceAddress   netip.Addr `split_words:"true" desc:"source of replies to the VLAN, such as the service IP; empty: the listener's address, else giaddr"`

	Servers         []string `desc:"DHCP servers, host or host:port, separated by commas; each request goes to every one; empty: DHCPv6 only"`
	Upstream        string   `desc:"giaddr: an address of this pod that the servers reach, or an interface that has it; empty: the address used towards the server"`
	ServersOptional bool     `split_words:"true" default:"false" desc:"be ready while no server's name exists, which another replica could not help"`

	MaxHops          int            `split_words:"true" default:"4" desc:"relay agents that a request may pass, this one included; at most 16"`
	TrustedRelays    []netip.Prefix `split_words:"true" desc:"prefixes of relay agents (routers' helpers) whose requests are accepted"`
	TrustedListeners []string       `split_words:"true" desc:"listeners behind switches with DHCP snooping, whose option 82 without giaddr is accepted"`
	TrustedServers   []netip.Prefix `split_words:"true" desc:"prefixes that replies may come from; empty: any, since a reply has to match a request"`
	TokenKey         string         `split_words:"true" desc:"signs a token in option 82 (DHCPv6: Interface-Id), by which any replica knows a reply; at least 16 bytes, the same for all"`

	AgentOptions []relay.SubOption `split_words:"true" desc:"option 82: circuit-id, remote-id, link-selection, relay-id"`

	Dhcpv6Enabled       bool          `split_words:"true" default:"false" desc:"relay DHCPv6 as well, on the same listeners"`
	Dhcpv6Servers       []string      `split_words:"true" desc:"DHCPv6 servers, host, [address]:port or host:port; empty: the names in SERVERS, port 547"`
	Dhcpv6LinkAddresses []linkAddress `split_words:"true" desc:"name=address: the link address of a listener, by which servers choose the prefix; empty: its own, else unspecified"`

	feed.Destination
}

// listener is "name" or "name=link address".
type listener relay.Listener

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *listener) UnmarshalText(text []byte) error {
	parsed, err := relay.ParseListener(string(text))
	*l = listener(parsed)
	return err
}

// limits are what no setting changes. Tests do.
var limits relay.Limits

// relays are what the settings mean, for each family that is asked for.
func (s *settings) relays() (all []relay.Config) {
	if s.has4() {
		all = append(all, s.relay4())
	}
	if s.Dhcpv6Enabled {
		all = append(all, s.relay6())
	}
	return all
}

// relay is what the settings mean for both families.
func (s *settings) relay() relay.Config {
	c := relay.Config{
		TrustedRelays:   s.TrustedRelays,
		TrustedServers:  s.TrustedServers,
		ServersOptional: s.ServersOptional,
		TokenKey:        []byte(s.TokenKey),
		Limits:          limits,
	}
	if _, err := netip.ParseAddr(s.Upstream); err != nil {
		c.UpstreamInterface = s.Upstream
	}
	for _, l := range s.heard() {
		c.Listeners = append(c.Listeners, relay.Listener(l))
	}
	return c
}

// heard are the listeners, which may be none.
func (s *settings) heard() []listener {
	if len(s.Listeners) == 1 && s.Listeners[0].Name == "none" {
		return nil
	}
	return s.Listeners
}

// relay4 is what the settings mean for DHCPv4.
func (s *settings) relay4() relay.Config {
	c := s.relay()
	c.Servers = s.Servers
	c.UpstreamAddress, _ = netip.ParseAddr(s.Upstream)
	c.SourceAddress = s.SourceAddress
	c.MaxHops, c.TrustedListeners = s.MaxHops, s.TrustedListeners
	c.AgentOptions = s.AgentOptions
	c.ClearGiaddr, c.AlwaysBroadcast = s.ClearGiaddr, s.AlwaysBroadcast
	return c
}

// Removed implements the check of pkg/daemon.
func (s *settings) Removed() map[string]string {
	const allRelay = "every replica relays each machine, which takes one of the equal answers"
	return map[string]string{
		"BOOTS_SOCKET": "stack-boots shows boots now: " + prefix + "_BOOTS_ADDRESS takes the path of its socket",
		"PEERS":        allRelay, "OWNER_ADDRESS": allRelay,
		"PRESENT_GIADDR_ACTION":    "a giaddr or option 82 that is there already goes to the server as it is",
		"PENDING":                  "32768 requests are remembered for their replies",
		"PENDING_EXPIRY":           "a request is remembered for 10 s",
		"CLIENT_RATE":              "10 requests a second of one machine are relayed",
		"TOTAL_RATE":               "50000 requests a second of all machines are relayed",
		"NEWCOMER_RATE":            "100 requests a second are relayed beyond those that the servers answer",
		"DEAD_AFTER":               "30 unanswered requests in a row make a server count as dead",
		"RESOLVE_INTERVAL":         "names are looked up again when their records end, and every 10 s",
		"SEGMENTS":                 "each request leaves as a datagram of its own, which every server reads",
		"CIRCUIT_ID":               "circuit-id is the listener's name",
		"REMOTE_ID":                "remote-id is the listener's MAC address",
		"SUBSCRIBER_ID":            "option 82 has no subscriber-id",
		"RELAY_ID":                 "relay-id is made from the listener's MAC address",
		"DHCPV6_OPTIONS":           "a RELAY-FORW has interface-id and the client's MAC address",
		"DHCPV6_ENTERPRISE_NUMBER": "a RELAY-FORW has interface-id and the client's MAC address",
		"DHCPV6_UPSTREAM_ADDRESS":  "requests leave from the address used towards the server",
		"LISTEN_BROADCAST":         prefix + "_LISTENERS=none hears no broadcasts",
		"UPSTREAM_ADDRESS":         prefix + "_UPSTREAM takes it",
		"UPSTREAM_INTERFACE":       prefix + "_UPSTREAM takes its name",
		"TRACE_PACKETS":            "the last 512 packets are kept, which only the pod itself may fetch",
	}
}

// Validate implements the check of pkg/daemon. A fault names the variable that has to be changed.
func (s *settings) Validate() error {
	var faults []error
	for _, config := range s.relays() {
		for _, err := range setting.Faults(config.Validate()) {
			faults = append(faults, fmt.Errorf("%s_%w", prefix, err))
		}
	}
	faults = slices.Concat(faults, s.validate6())
	if _, err := netip.ParseAddr(s.Upstream); err != nil && noInterface(s.Upstream) {
		faults = append(faults,
			fmt.Errorf("%s_UPSTREAM: %q is neither an address nor the name of an interface", prefix, s.Upstream))
	}
	if s.DrainGrace < 0 {
		faults = append(faults, fmt.Errorf("%s_DRAIN_GRACE: %s is below 0", prefix, s.DrainGrace))
	}
	if err := s.Check(prefix); err != nil {
		faults = append(faults, err)
	}
	seen := map[string]bool{} // what the families share is checked by both
	return errors.Join(slices.DeleteFunc(faults, func(err error) bool {
		again := seen[err.Error()]
		seen[err.Error()] = true
		return again
	})...)
}

// noInterface tells whether a text is no interface's name, but a mistyped address: it has characters that the kernel
// allows in no name, or is four numbers.
func noInterface(text string) bool {
	numbers := strings.Count(text, ".") == 3 && strings.Trim(text, "0123456789.") == ""
	return numbers || strings.ContainsAny(text, ":/")
}

// has4 tells whether DHCPv4 is to be relayed.
func (s *settings) has4() bool { return len(s.Servers) > 0 || !s.Dhcpv6Enabled }
