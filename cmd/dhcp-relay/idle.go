package main

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/tinkerbell/stack/pkg/relay"
)

// The settings of one family alone.
var (
	only4 = []string{
		"AlwaysBroadcast", "ClearGiaddr", "SourceAddress", "UpstreamAddress", "MaxHops", "PresentGiaddrAction",
		"TrustedListeners", "AgentOptions", "CircuitID",
	}
	only6 = []string{
		"Dhcpv6Servers", "Dhcpv6LinkAddresses", "Dhcpv6UpstreamAddress", "Dhcpv6Options", "Dhcpv6EnterpriseNumber",
	}
)

// validateIdle names the settings that do nothing: whoever set them expects something else of the relay.
func (s *settings) validateIdle() (faults []error) {
	idle := func(why string, fields ...string) {
		for _, field := range fields {
			if s.differs(field) {
				faults = append(faults, fmt.Errorf("%s_%s: has a value, and %s", prefix, variable(field), why))
			}
		}
	}
	has4, has6 := s.has4(), s.Dhcpv6Enabled
	if !has6 {
		idle("DHCPV6_ENABLED is not true", only6...)
	} else if !s.ListenBroadcast {
		idle("LISTEN_BROADCAST is false", "Dhcpv6LinkAddresses")
	}
	if !has4 {
		idle("SERVERS names no DHCP server", only4...)
		if slices.ContainsFunc(s.Listeners, func(l listener) bool { return l.LinkAddress.IsValid() }) {
			idle("a link address there is for option 82: SERVERS names no DHCP server", "Listeners")
		}
	}
	for field, option := range map[string]relay.SubOption{
		"Dhcpv6EnterpriseNumber": relay.RemoteID,
		"RemoteID":               relay.RemoteID, "SubscriberID": relay.SubscriberID, "RelayID": relay.RelayID,
	} {
		// Of the values that both families have DHCPv4 complains itself.
		if has6 && !slices.Contains(s.Dhcpv6Options, option) && (!has4 || field == "Dhcpv6EnterpriseNumber") {
			idle("DHCPV6_OPTIONS has no "+string(option), field)
		}
	}
	for field, prefixes := range map[string][]netip.Prefix{
		"TrustedRelays": s.TrustedRelays, "TrustedServers": s.TrustedServers,
	} {
		for _, p := range prefixes {
			if p.Addr().Is4() && !has4 {
				idle(p.String()+" is of IPv4, and SERVERS names no DHCP server", field)
			}
			if p.Addr().Is6() && !has6 {
				idle(p.String()+" is of IPv6, and DHCPV6_ENABLED is not true", field)
			}
		}
	}
	return faults
}

// differs tells whether a setting has another value than its default.
func (s *settings) differs(field string) bool {
	value := reflect.ValueOf(s).Elem().FieldByName(field)
	described, _ := reflect.TypeFor[settings]().FieldByName(field)
	return !value.IsZero() && fmt.Sprint(value.Interface()) != described.Tag.Get("default")
}
