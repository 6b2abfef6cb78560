package main

import (
	"net/netip"
	"testing"

	core "k8s.io/api/core/v1"

	"github.com/tinkerbell/stack/pkg/lb/service"
)

// The Service and its endpoint are ones that stack-lb forwards for.
func TestState(t *testing.T) {
	for name, at := range map[string][2]string{
		"IPv4": {"192.0.2.10:42113", "192.0.2.20:80"},
		"IPv6": {"[2001:db8::10]:42113", "[2001:db8::20]:80"},
	} {
		t.Run(name, func(t *testing.T) {
			listen, endpoint := netip.MustParseAddrPort(at[0]), netip.MustParseAddrPort(at[1])
			s := state(listen, endpoint)
			listeners := s.Plan.Listeners()
			if len(listeners) != 1 || listeners[0].AddrPort() != listen || listeners[0].Port.Protocol != core.ProtocolTCP {
				t.Fatalf("the listeners are %v, want %s", listeners, listen)
			}
			members := service.Endpoints(listeners[0], s.Slices(listeners[0].Service), s.Place)
			if len(members) != 1 || members[0].Addr != endpoint {
				t.Errorf("the endpoints are %v, want %s", members, endpoint)
			}
		})
	}
}
