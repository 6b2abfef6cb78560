package main

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tinkerbell/stack/pkg/relay"
	"github.com/tinkerbell/stack/pkg/relay6"
)

// idle is a setting that has a value and does nothing, and why.
type idle struct {
	variable string
	set      bool
	why      string
}

// validateIdle names the settings that do nothing: whoever set them expects something else of the relay.
func (s *settings) validateIdle() (faults []error) {
	all := s.idleOptions()
	if !s.Dhcpv6Enabled {
		all = append(all, s.idle6("DHCPV6_ENABLED is not true")...)
	}
	if !s.has4() {
		all = append(all, s.idle4("SERVERS names no DHCP server")...)
	}
	for _, each := range all {
		if each.set {
			faults = append(faults, fmt.Errorf("%s_%s: has a value, and %s", prefix, each.variable, each.why))
		}
	}
	faults = append(faults, s.idlePrefixes("TRUSTED_RELAYS", s.TrustedRelays)...)
	return append(faults, s.idlePrefixes("TRUSTED_SERVERS", s.TrustedServers)...)
}

// idlePrefixes are those of a family that is not relayed.
func (s *settings) idlePrefixes(variable string, prefixes []netip.Prefix) (faults []error) {
	for _, p := range prefixes {
		switch {
		case p.Addr().Is4() && !s.has4():
			faults = append(faults, fmt.Errorf("%s_%s: %s is of IPv4, and SERVERS names no DHCP server", prefix, variable, p))
		case p.Addr().Is6() && !s.Dhcpv6Enabled:
			faults = append(faults, fmt.Errorf("%s_%s: %s is of IPv6, and DHCPV6_ENABLED is not true", prefix, variable, p))
		}
	}
	return faults
}

// idle4 are the settings of DHCPv4 alone.
func (s *settings) idle4(why string) []idle {
	linked := slices.ContainsFunc(s.Listeners, func(l listener) bool { return l.LinkAddress.IsValid() })
	return []idle{
		{"LISTENERS", linked, "a link address there is for option 82: " + why},
		{"ALWAYS_BROADCAST", s.AlwaysBroadcast, why},
		{"CLEAR_GIADDR", s.ClearGiaddr, why},
		{"SOURCE_ADDRESS", s.SourceAddress.IsValid(), why},
		{"UPSTREAM_ADDRESS", s.UpstreamAddress.IsValid(), why},
		{"MAX_HOPS", s.MaxHops != relay.DefaultHops, why},
		{"PRESENT_GIADDR_ACTION", s.PresentGiaddrAction != relay.Forward, why},
		{"TRUSTED_LISTENERS", len(s.TrustedListeners) > 0, why},
		{"AGENT_OPTIONS", len(s.AgentOptions) > 0, why},
		{"CIRCUIT_ID", s.CircuitID != "", why},
	}
}

// idle6 are the settings of DHCPv6 alone.
func (s *settings) idle6(why string) []idle {
	return []idle{
		{"DHCPV6_SERVERS", len(s.Dhcpv6Servers) > 0, why},
		{"DHCPV6_LINK_ADDRESSES", len(s.Dhcpv6LinkAddresses) > 0, why},
		{"DHCPV6_UPSTREAM_ADDRESS", s.Dhcpv6UpstreamAddress.IsValid(), why},
		{"DHCPV6_OPTIONS", len(s.Dhcpv6Options) > 0, why},
		{"DHCPV6_ENTERPRISE_NUMBER", s.Dhcpv6EnterpriseNumber != 0, why},
	}
}

// idleOptions are values of options that nothing asks for, where DHCPv6 is relayed. DHCPv4 complains of those of its
// own.
func (s *settings) idleOptions() []idle {
	if !s.Dhcpv6Enabled {
		return nil
	}
	unasked := func(o relay6.Option) bool { return !slices.Contains(s.Dhcpv6Options, o) }
	why := func(o relay6.Option) string { return "DHCPV6_OPTIONS has no " + string(o) }
	all := []idle{
		{"DHCPV6_ENTERPRISE_NUMBER", s.Dhcpv6EnterpriseNumber != 0 && unasked(relay6.RemoteID), why(relay6.RemoteID)},
		{"DHCPV6_LINK_ADDRESSES", len(s.Dhcpv6LinkAddresses) > 0 && !s.ListenBroadcast, "LISTEN_BROADCAST is false"},
	}
	if s.has4() {
		return all
	}
	return append(
		all,
		idle{"REMOTE_ID", s.RemoteID != "" && unasked(relay6.RemoteID), why(relay6.RemoteID)},
		idle{"SUBSCRIBER_ID", s.SubscriberID != "" && unasked(relay6.SubscriberID), why(relay6.SubscriberID)},
		idle{"RELAY_ID", len(s.RelayID) > 0 && unasked(relay6.RelayID), why(relay6.RelayID)},
	)
}
