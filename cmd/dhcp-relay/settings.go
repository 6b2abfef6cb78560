package main

import (
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/relay"
)

const prefix = "DHCP_RELAY"

// settings is what the environment sets.
//
//nolint:lll // a tag cannot be broken
type settings struct {
	daemon.Settings
	AdminAddress string `split_words:"true" default:":9067" desc:"where /metrics, /healthz and /readyz are served"`
	Pprof        bool   `default:"false" desc:"serve profiles under /debug/pprof/ of the admin address"`

	Listeners         []string       `default:"macvlan0" desc:"interfaces on the provisioning VLANs, separated by commas"`
	ListenBroadcast   bool           `split_words:"true" default:"true" desc:"false: no listeners, only requests sent to an address of this pod (no NET_RAW)"`
	Servers           []string       `required:"true" desc:"DHCP servers, host or host:port, separated by commas; each request goes to every one"`
	UpstreamInterface string         `split_words:"true" desc:"giaddr is this interface's address; empty: the address used towards the server"`
	UpstreamAddress   netip.Addr     `split_words:"true" desc:"giaddr, an address of this pod that the servers reach"`
	SourceAddress     netip.Addr     `split_words:"true" desc:"source of replies to the VLAN, such as the service IP; empty: the listener's address, else giaddr"`
	MaxHops           int            `split_words:"true" default:"4" desc:"relay agents that a request may pass, this one included; at most 16"`
	TrustedRelays     []netip.Prefix `split_words:"true" desc:"prefixes of relay agents (routers' helpers) whose requests are accepted"`
	TrustedServers    []netip.Prefix `split_words:"true" desc:"prefixes that replies may come from; empty: any, since a reply has to match a request"`
	AlwaysBroadcast   bool           `split_words:"true" default:"false" desc:"broadcast every reply, for firmware that does not hear unicasts and does not say so"`
	ResolveInterval   time.Duration  `split_words:"true" default:"10s" desc:"how often the servers' names are looked up"`
	Pending           int            `default:"32768" desc:"requests that are remembered for their replies, at most"`
	PendingExpiry     time.Duration  `split_words:"true" default:"10s" desc:"how long a request is remembered"`
}

// relay is what the settings mean.
func (s *settings) relay() relay.Config {
	listeners := s.Listeners
	if !s.ListenBroadcast {
		listeners = nil
	}
	return relay.Config{
		Listeners:         listeners,
		Servers:           s.Servers,
		UpstreamInterface: s.UpstreamInterface,
		UpstreamAddress:   s.UpstreamAddress,
		SourceAddress:     s.SourceAddress,
		MaxHops:           s.MaxHops,
		TrustedRelays:     s.TrustedRelays,
		TrustedServers:    s.TrustedServers,
		AlwaysBroadcast:   s.AlwaysBroadcast,
		ResolveInterval:   s.ResolveInterval,
		Pending:           s.Pending,
		PendingExpiry:     s.PendingExpiry,
	}
}

// Validate implements the check of pkg/daemon.
func (s *settings) Validate() error { return s.relay().Validate() }
