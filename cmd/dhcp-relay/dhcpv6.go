package main

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/pkg/relay"
	"github.com/tinkerbell/stack/pkg/relay/fault"
	"github.com/tinkerbell/stack/pkg/relay/server"
	"github.com/tinkerbell/stack/pkg/relay6"
)

// linkAddress is "name=address": the link address of a listener.
type linkAddress struct {
	name    string
	address netip.Addr
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *linkAddress) UnmarshalText(text []byte) error {
	name, address, found := strings.Cut(string(text), "=")
	if !found {
		return fmt.Errorf("%q is not name=address", text)
	}
	parsed, err := netip.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("listener %q: failed to parse link address: %w", name, err)
	}
	*l = linkAddress{name: name, address: parsed}
	return nil
}

// relay6 is what the settings mean for DHCPv6.
func (s *settings) relay6() relay6.Config {
	c := relay6.Config{
		Servers:           s.servers6(),
		UpstreamInterface: s.UpstreamInterface,
		UpstreamAddress:   s.Dhcpv6UpstreamAddress,
		TrustedRelays:     ipv6(s.TrustedRelays),
		TrustedServers:    ipv6(s.TrustedServers),
		Options:           s.Dhcpv6Options,
		RemoteID:          s.RemoteID,
		SubscriberID:      s.SubscriberID,
		RelayID:           s.RelayID,
		Enterprise:        s.Dhcpv6EnterpriseNumber,
		Bounds:            s.bounds(),
	}
	if s.ListenBroadcast {
		for _, l := range s.Listeners {
			heard := relay6.Listener{Name: l.Name}
			for _, link := range s.Dhcpv6LinkAddresses {
				if link.name == l.Name {
					heard.LinkAddress = link.address
				}
			}
			c.Listeners = append(c.Listeners, heard)
		}
	}
	return c
}

// servers6 are the DHCPv6 servers: those of DHCPv4 by name, unless others are named.
func (s *settings) servers6() []string {
	if len(s.Dhcpv6Servers) > 0 {
		return s.Dhcpv6Servers
	}
	var names []string
	for _, name := range s.Servers {
		host, _, err := server.Split(name, 0)
		if err != nil {
			continue // DHCPv4 complains
		}
		if _, err := netip.ParseAddr(host); err != nil {
			names = append(names, host)
		}
	}
	return names
}

func ipv6(prefixes []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(prefixes), func(p netip.Prefix) bool { return !p.Addr().Is6() })
}

// without4 is a value of an option for DHCPv4: none where the option is DHCPv6's only.
func (s *settings) without4(value string, four relay.SubOption, six relay6.Option) string {
	if !slices.Contains(s.AgentOptions, four) && slices.Contains(s.Dhcpv6Options, six) {
		return ""
	}
	return value
}

// named6 are the variables of the fields that DHCPv6 has to itself.
var named6 = map[string]string{
	"Servers": "DHCPV6_SERVERS", "LinkAddresses": "DHCPV6_LINK_ADDRESSES", "UpstreamAddress": "DHCPV6_UPSTREAM_ADDRESS",
	"Options": "DHCPV6_OPTIONS",
}

// validate6 joins what is wrong with the settings of DHCPv6.
func (s *settings) validate6() (faults []error) {
	if !s.Dhcpv6Enabled {
		return nil
	}
	if len(s.TrustedServers) > 0 && len(ipv6(s.TrustedServers)) == 0 {
		faults = append(faults, fault.New("TrustedServers", "has no IPv6 prefix for DHCPv6's servers"))
	}
	for i, l := range s.Dhcpv6LinkAddresses {
		if !slices.ContainsFunc(s.Listeners, func(each listener) bool { return each.Name == l.name }) {
			faults = append(faults, fault.New("LinkAddresses", "%q: not a listener", l.name))
		}
		if slices.ContainsFunc(s.Dhcpv6LinkAddresses[:i], func(each linkAddress) bool { return each.name == l.name }) {
			faults = append(faults, fault.New("LinkAddresses", "%q: named twice", l.name))
		}
	}
	if joined, ok := s.relay6().Validate().(interface{ Unwrap() []error }); ok {
		faults = append(faults, joined.Unwrap()...)
	}
	for i, err := range faults {
		if f, ok := errors.AsType[*fault.Fault](err); ok {
			name := named6[f.Field]
			if name == "" {
				name = variable(f.Field)
			}
			faults[i] = fmt.Errorf("%s_%s: %s", prefix, name, f.Text)
		}
	}
	return faults
}
