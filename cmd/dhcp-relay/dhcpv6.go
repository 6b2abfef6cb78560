package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/pkg/relay"
	"github.com/tinkerbell/stack/pkg/relay/server"
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
func (s *settings) relay6() relay.Config {
	c := s.relay()
	c.IPv6, c.Servers = true, s.servers6()
	c.TrustedRelays, c.TrustedServers = ipv6(s.TrustedRelays), ipv6(s.TrustedServers)
	for i := range c.Listeners {
		c.Listeners[i].LinkAddress = netip.Addr{} // that is DHCPv4's
		for _, link := range s.Dhcpv6LinkAddresses {
			if link.name == c.Listeners[i].Name {
				c.Listeners[i].LinkAddress = link.address
			}
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

// validate6 names the faults of the settings of DHCPv6 that relay.Config cannot find.
func (s *settings) validate6() (faults []error) {
	if !s.Dhcpv6Enabled {
		return nil
	}
	add := func(variable, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s_%s: %s", prefix, variable, fmt.Sprintf(format, args...)))
	}
	if len(s.TrustedServers) > 0 && len(ipv6(s.TrustedServers)) == 0 {
		add("TRUSTED_SERVERS", "has no IPv6 prefix for DHCPv6's servers")
	}
	for i, l := range s.Dhcpv6LinkAddresses {
		if !slices.ContainsFunc(s.Listeners, func(each listener) bool { return each.Name == l.name }) {
			add("DHCPV6_LINK_ADDRESSES", "%q: not a listener", l.name)
		}
		if slices.ContainsFunc(s.Dhcpv6LinkAddresses[:i], func(each linkAddress) bool { return each.name == l.name }) {
			add("DHCPV6_LINK_ADDRESSES", "%q: named twice", l.name)
		}
	}
	return faults
}
