package relay

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
)

// Action is the action on a request that carries a giaddr or option 82 already.
type Action string

// The actions, in the words of ISC dhcrelay (-m) and of the chart (presentGiaddrAction).
const (
	Forward Action = "forward" // as it is
	Append  Action = "append"  // our sub-options behind those that are there
	Replace Action = "replace" // our option 82 in place of the one that is there
	Discard Action = "discard" // drop the request
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Action) UnmarshalText(text []byte) error {
	switch got := Action(text); got {
	case Forward, Append, Replace, Discard:
		*a = got
		return nil
	default:
		return fmt.Errorf("%q is none of forward, append, replace, discard", text)
	}
}

// SubOption is a part of option 82 that this relay can add.
type SubOption string

// The sub-options by their names in the RFCs.
const (
	CircuitID        SubOption = "circuit-id"         // Agent.CircuitID, or the listener's name
	RemoteID         SubOption = "remote-id"          // Agent.RemoteID, or the listener's MAC address
	LinkSelection    SubOption = "link-selection"     // the listener's link address, or the giaddr that we replace
	SubscriberID     SubOption = "subscriber-id"      // Agent.SubscriberID
	RelayID          SubOption = "relay-id"           // Agent.RelayID, or a DUID of the first listener's MAC address
	ServerIDOverride SubOption = "server-id-override" // SourceAddress, or the listener's address; with relay flags
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *SubOption) UnmarshalText(text []byte) error {
	switch got := SubOption(text); got {
	case CircuitID, RemoteID, LinkSelection, SubscriberID, RelayID, ServerIDOverride:
		*s = got
		return nil
	default:
		return fmt.Errorf("%q is none of %s, %s, %s, %s, %s, %s", text,
			CircuitID, RemoteID, LinkSelection, SubscriberID, RelayID, ServerIDOverride)
	}
}

// Agent describes the option 82 that this relay adds: only the sub-options that Options names (RFC 3046 section 2.1 has
// none by default). Of DHCPv6 it describes the options of a RELAY-FORW besides Interface-Id and the client's link-layer
// address: RemoteID (RFC 4649), SubscriberID (RFC 4580) and RelayID (RFC 5460).
type Agent struct {
	Options                           []SubOption
	CircuitID, RemoteID, SubscriberID string
	// RelayID is a DUID (RFC 6925 section 5).
	RelayID []byte
	// Enterprise is the enterprise number in front of DHCPv6's Remote-Id (RFC 4649 section 3).
	Enterprise uint32
}

func (a *Agent) has(s SubOption) bool { return slices.Contains(a.Options, s) }

// maxText keeps all texts together, with a token, within an option.
const maxText = 48

func (c *Config) validateAgent(found *faults) {
	a, options := &c.Agent, "AgentOptions"
	if c.IPv6 {
		options = "Options"
	}
	for _, text := range []struct {
		name  SubOption
		field string
		len   int
	}{
		{CircuitID, "CircuitID", len(a.CircuitID)},
		{RemoteID, "RemoteID", len(a.RemoteID)},
		{SubscriberID, "SubscriberID", len(a.SubscriberID)},
		{RelayID, "RelayID", len(a.RelayID)},
	} {
		if text.len > maxText {
			found.add(text.field, "%d bytes, more than %d", text.len, maxText)
		}
		if text.len > 0 && !a.has(text.name) && !c.IPv6 {
			found.add(text.field, "has a value, but %s is not among the agent options", text.name)
		}
	}
	for i, option := range a.Options {
		if slices.Contains(a.Options[:i], option) {
			found.add(options, "%s is named twice", option)
		}
		if c.IPv6 && option != RemoteID && option != SubscriberID && option != RelayID {
			found.add(options, "%s is an option of DHCPv4", option)
		}
	}
	if a.has(SubscriberID) && a.SubscriberID == "" {
		found.add("SubscriberID", "has no value, and subscriber-id is asked for")
	}
	if a.has(RelayID) && len(a.RelayID) == 0 && len(c.Listeners) == 0 && !c.IPv6 {
		found.add("RelayID", "has no value, and there is no listener to take one from")
	}
}

// agentOf is the value of option 82 for requests that arrive on a listener, without token; its relay flags are those of
// a broadcast. mac and address are the interface's. The sub-options are in the order of their codes.
func (c *Config) agentOf(l Listener, mac frame.MAC, address [4]byte) []byte {
	subs := c.fixedSubs()
	text := func(code uint8, option SubOption, value string, otherwise []byte) {
		if c.Agent.has(option) {
			if value != "" {
				otherwise = []byte(value)
			}
			subs[code] = otherwise
		}
	}
	ip := func(code uint8, option SubOption, first netip.Addr) {
		at := address
		if first.IsValid() {
			at = first.As4()
		}
		if c.Agent.has(option) && at != ([4]byte{}) {
			subs[code] = at[:]
		}
	}
	text(dhcp.SubCircuitID, CircuitID, c.Agent.CircuitID, []byte(l.Name))
	text(dhcp.SubRemoteID, RemoteID, c.Agent.RemoteID, mac[:])
	text(dhcp.SubRelayID, RelayID, string(c.Agent.RelayID), duid(mac))
	ip(dhcp.SubLinkSelection, LinkSelection, l.LinkAddress)
	ip(dhcp.SubServerIDOverride, ServerIDOverride, c.SourceAddress)
	if c.Agent.has(ServerIDOverride) {
		subs[dhcp.SubFlags] = []byte{0}
	}
	return subs.ToBytes()
}

// agentOfAgents is the value for a relay agent's request, without link selection and token. It describes no circuit,
// and has no override: that agent's clients know the server by another address.
func (c *Config) agentOfAgents() []byte {
	subs := c.fixedSubs()
	if c.Agent.has(ServerIDOverride) {
		subs[dhcp.SubFlags] = []byte{dhcp.FlagUnicast}
	}
	return subs.ToBytes()
}

// agentOfUnknown is the value for the unicast of a client whose listener is not known, as that of agentOf.
func (c *Config) agentOfUnknown() []byte {
	subs := c.fixedSubs()
	if c.Agent.has(CircuitID) && c.Agent.CircuitID != "" {
		subs[dhcp.SubCircuitID] = []byte(c.Agent.CircuitID)
	}
	if c.Agent.has(RemoteID) && c.Agent.RemoteID != "" {
		subs[dhcp.SubRemoteID] = []byte(c.Agent.RemoteID)
	}
	if c.Agent.has(ServerIDOverride) {
		subs[dhcp.SubFlags] = []byte{0}
		if c.SourceAddress.IsValid() {
			subs[dhcp.SubServerIDOverride] = c.SourceAddress.AsSlice()
		}
	}
	return subs.ToBytes()
}

// fixedSubs are the sub-options that are the same in every request.
func (c *Config) fixedSubs() dhcpv4.Options {
	subs := dhcpv4.Options{}
	if c.Agent.has(SubscriberID) {
		subs[dhcp.SubSubscriberID] = []byte(c.Agent.SubscriberID)
	}
	if c.Agent.has(RelayID) && len(c.Agent.RelayID) > 0 {
		subs[dhcp.SubRelayID] = c.Agent.RelayID
	}
	return subs
}

// duid is a DUID-LL (RFC 9915 section 11.4).
func duid(mac frame.MAC) []byte {
	return (&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac[:]}).ToBytes()
}

// appendUnicast appends the value of option 82 for a client's own request that was sent to this host, as of a RENEW.
// The server has to find the lease by the sub-options that it saw in the client's broadcasts, which were those of
// base. But where a pool is chosen by link selection it is chosen by that of ciaddr: giaddr is the same, and any
// address of the link will do (RFC 3527 section 3). asked is the address that the request was sent to, zero where it
// may have been translated: it is the client's server, so the override of the broadcasts, which the answer to a RENEW
// has to repeat (RFC 5107 section 4).
func (c *Config) appendUnicast(b, base []byte, ciaddr, asked [4]byte) []byte {
	linked := isHost(ciaddr) && (c.Agent.has(LinkSelection) || c.Agent.has(ServerIDOverride))
	overridden := false
	for code, value, rest, ok := dhcp.NextSub(base); ok; code, value, rest, ok = dhcp.NextSub(rest) {
		switch {
		case code == dhcp.SubFlags:
			b = append(b, dhcp.SubFlags, 1, dhcp.FlagUnicast)
			continue
		case code == dhcp.SubLinkSelection && linked:
			continue
		case code == dhcp.SubServerIDOverride:
			overridden = true
		}
		b = dhcp.AppendSub(b, code, value)
	}
	if linked {
		b = dhcp.AppendSub(b, dhcp.SubLinkSelection, ciaddr[:])
	}
	if c.Agent.has(ServerIDOverride) && !overridden && asked != ([4]byte{}) {
		b = dhcp.AppendSub(b, dhcp.SubServerIDOverride, asked[:])
	}
	return b
}

// isHost tells an address that one host of a network can have: neither 0/8 nor 127/8, a group or a broadcast.
func isHost(ip [4]byte) bool {
	return ip[0] != 0 && ip[0] != 127 && ip[0]&0xf0 != 224 && ip != limitedBroadcast
}
