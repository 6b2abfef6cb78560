package relay

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/fault"
)

// Action is the action on a request that carries a giaddr or option 82 already.
type Action string

// The actions, in the words of ISC dhcrelay (-m) and of the chart (presentGiaddrAction).
const (
	Forward Action = "forward" // as it is
	Append  Action = "append"  // our option 82 behind the one that is there
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
// none by default).
type Agent struct {
	Options                           []SubOption
	CircuitID, RemoteID, SubscriberID string
	// RelayID is a DUID (RFC 6925 section 5).
	RelayID []byte
}

func (a Agent) has(s SubOption) bool { return slices.Contains(a.Options, s) }

// maxText keeps all texts together, with a token, within an option.
const maxText = 48

func (c Config) validateAgent() (faults []error) {
	a := c.Agent
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
			faults = append(faults, fault.New(text.field, "%d bytes, more than %d", text.len, maxText))
		}
		if text.len > 0 && !a.has(text.name) {
			faults = append(faults, fault.New(text.field, "has a value, but %s is not among the agent options", text.name))
		}
	}
	for i, option := range a.Options {
		if slices.Contains(a.Options[:i], option) {
			faults = append(faults, fault.New("AgentOptions", "%s is named twice", option))
		}
	}
	if a.has(SubscriberID) && a.SubscriberID == "" {
		faults = append(faults, fault.New("SubscriberID", "has no value, and subscriber-id is asked for"))
	}
	if a.has(RelayID) && len(a.RelayID) == 0 && len(c.Listeners) == 0 {
		faults = append(faults, fault.New("RelayID", "has no value, and there is no listener to take one from"))
	}
	return faults
}

// agentOf is the value of option 82 for requests that arrive on a listener, without relay flags and token. mac and
// address are the interface's.
func (c Config) agentOf(l Listener, mac frame.MAC, address [4]byte) []byte {
	var b []byte
	text := func(code byte, value string, otherwise []byte) {
		if value != "" {
			otherwise = []byte(value)
		}
		b = dhcp.AppendSub(b, code, otherwise)
	}
	ip := func(code byte, first netip.Addr, otherwise [4]byte) {
		if first.IsValid() {
			otherwise = first.As4()
		}
		if otherwise != ([4]byte{}) {
			b = dhcp.AppendSub(b, code, otherwise[:])
		}
	}
	for _, option := range c.Agent.Options {
		switch option {
		case CircuitID:
			text(dhcp.SubCircuitID, c.Agent.CircuitID, []byte(l.Name))
		case RemoteID:
			text(dhcp.SubRemoteID, c.Agent.RemoteID, mac[:])
		case SubscriberID:
			text(dhcp.SubSubscriberID, c.Agent.SubscriberID, nil)
		case RelayID:
			text(dhcp.SubRelayID, string(c.Agent.RelayID), duid(mac))
		case LinkSelection:
			ip(dhcp.SubLinkSelection, l.LinkAddress, address)
		case ServerIDOverride:
			ip(dhcp.SubServerIDOverride, c.SourceAddress, address)
			b = dhcp.AppendSub(b, dhcp.SubFlags, []byte{0})
		}
	}
	return b
}

// duid is a DUID-LL (RFC 8415 section 11.4).
func duid(mac frame.MAC) []byte { return append([]byte{0, 3, 0, htypeEthernet}, mac[:]...) }

// agentOfUnicast is the value of option 82 for a request that was sent to this host. It describes neither a circuit
// nor a link, except for a giaddr that this relay replaces.
func (c Config) agentOfUnicast(b []byte, giaddr [4]byte) []byte {
	for _, option := range c.Agent.Options {
		switch option {
		case LinkSelection:
			if giaddr != ([4]byte{}) {
				b = dhcp.AppendSub(b, dhcp.SubLinkSelection, giaddr[:])
			}
		case ServerIDOverride:
			// No override: the client knows the address that it asked already (RFC 5107 section 5).
			b = append(b, dhcp.SubFlags, 1, dhcp.FlagUnicast)
		case SubscriberID:
			b = append(append(b, dhcp.SubSubscriberID, byte(len(c.Agent.SubscriberID))), c.Agent.SubscriberID...)
		case RelayID:
			if len(c.Agent.RelayID) > 0 {
				b = dhcp.AppendSub(b, dhcp.SubRelayID, c.Agent.RelayID)
			}
		case CircuitID, RemoteID:
		}
	}
	return b
}
