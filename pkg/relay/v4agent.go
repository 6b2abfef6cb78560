package relay

import (
	"fmt"
	"slices"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
)

// SubOption is a part of option 82 that this relay can add.
type SubOption string

// The sub-options by their names in the RFCs.
const (
	CircuitID     SubOption = "circuit-id"     // the listener's name
	RemoteID      SubOption = "remote-id"      // the listener's MAC address
	LinkSelection SubOption = "link-selection" // the listener's link address, or the giaddr that we replace
	RelayID       SubOption = "relay-id"       // a DUID of the listener's MAC address
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *SubOption) UnmarshalText(text []byte) error {
	switch got := SubOption(text); got {
	case CircuitID, RemoteID, LinkSelection, RelayID:
		*s = got
		return nil
	default:
		return fmt.Errorf("%q is none of %s, %s, %s, %s", text, CircuitID, RemoteID, LinkSelection, RelayID)
	}
}

// adds reports whether this relay adds a sub-option. It has none by default (RFC 3046 section 2.1).
func (c *Config) adds(s SubOption) bool { return slices.Contains(c.AgentOptions, s) }

func (c *Config) validateAgent(found *faults) {
	for i, option := range c.AgentOptions {
		if slices.Contains(c.AgentOptions[:i], option) {
			found.add("AGENT_OPTIONS", "%s is named twice", option)
		}
	}
	if c.adds(RelayID) && len(c.Listeners) == 0 {
		found.add("AGENT_OPTIONS", "there is no listener to take relay-id from")
	}
}

// agentOf is the value of option 82 for requests that arrive on a listener, without token. mac and address are the
// interface's. The sub-options are in the order of their codes.
func (c *Config) agentOf(l Listener, mac frame.MAC, address [4]byte) []byte {
	if l.LinkAddress.IsValid() {
		address = l.LinkAddress.As4()
	}
	subs := dhcpv4.Options{}
	for option, each := range map[SubOption]struct {
		code  uint8
		value []byte
	}{
		CircuitID: {dhcp.SubCircuitID, []byte(l.Name)}, RemoteID: {dhcp.SubRemoteID, mac[:]},
		RelayID: {dhcp.SubRelayID, duid(mac)}, LinkSelection: {dhcp.SubLinkSelection, address[:]},
	} {
		if c.adds(option) && (option != LinkSelection || address != [4]byte{}) {
			subs[each.code] = each.value
		}
	}
	return subs.ToBytes()
}

// duid is a DUID-LL (RFC 9915 section 11.4).
func duid(mac frame.MAC) []byte {
	return (&dhcpv6.DUIDLL{HWType: iana.HWTypeEthernet, LinkLayerAddr: mac[:]}).ToBytes()
}

// isHost tells an address that one host of a network can have: neither 0/8 nor 127/8, a group or a broadcast.
func isHost(ip [4]byte) bool {
	return ip[0] != 0 && ip[0] != 127 && ip[0]&0xf0 != 224 && ip != limitedBroadcast
}
