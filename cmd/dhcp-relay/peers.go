package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/relay/peers"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// peerMode is which of several replicas relays a machine.
type peerMode string

const (
	peersOff   peerMode = "off"   // this one, whatever others do
	peersOwner peerMode = "owner" // the one whose node has the stack's address; where no owner can be known, as hash
	peersHash  peerMode = "hash"  // by the machine's identity
)

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *peerMode) UnmarshalText(text []byte) error {
	switch got := peerMode(text); got {
	case peersOff, peersOwner, peersHash:
		*m = got
		return nil
	default:
		return fmt.Errorf("%q is none of %s, %s, %s", text, peersOwner, peersHash, peersOff)
	}
}

// ownerAddress is the address whose owner relays.
func (s *settings) ownerAddress() netip.Addr { return cmp.Or(s.OwnerAddress, s.SourceAddress) }

// validatePeers joins what is wrong with the settings of several replicas.
func (s *settings) validatePeers() (faults []error) {
	add := func(variable, text string) { faults = append(faults, fmt.Errorf("%s_%s: %s", prefix, variable, text)) }
	if s.Peers == peersOff {
		if s.OwnerAddress.IsValid() {
			add("OWNER_ADDRESS", "has a value, and PEERS is off")
		}
		return faults
	}
	if !s.ListenBroadcast {
		add("PEERS", "replicas hear each other on the listeners, and LISTEN_BROADCAST is false: leave it off")
	}
	switch address := s.ownerAddress(); {
	case s.Peers != peersOwner:
	case !address.IsValid():
		add("OWNER_ADDRESS", "is needed with PEERS=owner: the stack's address")
	case address.Is4In6() || address.Zone() != "" || !server.Usable(address):
		add("OWNER_ADDRESS", fmt.Sprintf("%s: not an address of one host on a network", address))
	}
	return faults
}

// peersConfig is what the settings mean for several replicas; it has no listeners where there is one.
func (s *settings) peersConfig() (c peers.Config) {
	if s.Peers == peersOff {
		return c
	}
	c.Key = []byte(s.TokenKey)
	for _, l := range s.Listeners {
		c.Listeners = append(c.Listeners, l.Name)
	}
	// What all replicas of an installation have in common, and another installation has not.
	if address := s.ownerAddress(); address.IsValid() {
		c.Name = address.String()
	} else {
		c.Name = strings.Join(slices.Concat(s.Servers, s.Dhcpv6Servers), ",")
	}
	if s.Peers == peersOwner {
		c.Address = s.ownerAddress()
	}
	return c
}

// ready joins why any of the tasks is not ready.
func ready(tasks []daemon.Task) error {
	faults := make([]error, 0, len(tasks))
	for _, task := range tasks {
		faults = append(faults, task.Ready())
	}
	return errors.Join(faults...)
}
