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
	CircuitID        SubOption = "circuit-id"         // the listener's name
	RemoteID         SubOption = "remote-id"          // the listener's MAC address
	LinkSelection    SubOption = "link-selection"     // the listener's link address, or the giaddr that we replace
	RelayID          SubOption = "relay-id"           // a DUID of the listener's MAC address
	ServerIDOverride SubOption = "server-id-override" // SourceAddress, or the listener's address; with relay flags
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *SubOption) UnmarshalText(text []byte) error {
	switch got := SubOption(text); got {
	case CircuitID, RemoteID, LinkSelection, RelayID, ServerIDOverride:
		*s = got
		return nil
	default:
		return fmt.Errorf("%q is none of %s, %s, %s, %s, %s", text,
			CircuitID, RemoteID, LinkSelection, RelayID, ServerIDOverride)
	}
}

// adds reports whether this relay adds a sub-option. It has none by default (RFC 3046 section 2.1).
func (c *Config) adds(s SubOption) bool { return slices.Contains(c.AgentOptions, s) }

func (c *Config) validateAgent(found *faults) {
	for i, option := range c.AgentOptions {
		if slices.Contains(c.AgentOptions[:i], option) {
			found.add("AgentOptions", "%s is named twice", option)
		}
	}
	if c.adds(RelayID) && len(c.Listeners) == 0 {
		found.add("AgentOptions", "there is no listener to take relay-id from")
	}
}

// agentOf is the value of option 82 for requests that arrive on a listener, without token; its relay flags are those of
// a broadcast. mac and address are the interface's. The sub-options are in the order of their codes.
func (c *Config) agentOf(l Listener, mac frame.MAC, address [4]byte) []byte {
	subs := dhcpv4.Options{}
	text := func(code uint8, option SubOption, value []byte) {
		if c.adds(option) {
			subs[code] = value
		}
	}
	ip := func(code uint8, option SubOption, first netip.Addr) {
		at := address
		if first.IsValid() {
			at = first.As4()
		}
		if c.adds(option) && at != ([4]byte{}) {
			subs[code] = at[:]
		}
	}
	text(dhcp.SubCircuitID, CircuitID, []byte(l.Name))
	text(dhcp.SubRemoteID, RemoteID, mac[:])
	text(dhcp.SubRelayID, RelayID, duid(mac))
	ip(dhcp.SubLinkSelection, LinkSelection, l.LinkAddress)
	ip(dhcp.SubServerIDOverride, ServerIDOverride, c.SourceAddress)
	if c.adds(ServerIDOverride) {
		subs[dhcp.SubFlags] = []byte{0}
	}
	return subs.ToBytes()
}

// agentOfAgents is the value for a relay agent's request, without link selection and token. It describes no circuit,
// and has no override: that agent's clients know the server by another address.
func (c *Config) agentOfAgents() []byte {
	subs := dhcpv4.Options{}
	if c.adds(ServerIDOverride) {
		subs[dhcp.SubFlags] = []byte{dhcp.FlagUnicast}
	}
	return subs.ToBytes()
}

// agentOfUnknown is the value for the unicast of a client whose listener is not known, as that of agentOf.
func (c *Config) agentOfUnknown() []byte {
	subs := dhcpv4.Options{}
	if c.adds(ServerIDOverride) {
		subs[dhcp.SubFlags] = []byte{0}
		if c.SourceAddress.IsValid() {
			subs[dhcp.SubServerIDOverride] = c.SourceAddress.AsSlice()
		}
	}
	return subs.ToBytes()
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
	linked := isHost(ciaddr) && (c.adds(LinkSelection) || c.adds(ServerIDOverride))
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
	if c.adds(ServerIDOverride) && !overridden && asked != ([4]byte{}) {
		b = dhcp.AppendSub(b, dhcp.SubServerIDOverride, asked[:])
	}
	return b
}

// isHost tells an address that one host of a network can have: neither 0/8 nor 127/8, a group or a broadcast.
func isHost(ip [4]byte) bool {
	return ip[0] != 0 && ip[0] != 127 && ip[0]&0xf0 != 224 && ip != limitedBroadcast
}
