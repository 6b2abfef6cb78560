package service

import (
	"net/netip"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// Serves says why a node does not serve an address, nil if it does: where externalTrafficPolicy is Local, it needs a
// ready endpoint of every Service of the address. Where no node has one, an endpoint that still serves while it
// terminates will do (KEP-1669). slices are those of a Service.
func Serves(a *Address, node string, slices func(*core.Service) []*discovery.EndpointSlice) *reason.Error {
	for _, s := range a.Services {
		if s.Spec.ExternalTrafficPolicy != core.ServiceExternalTrafficPolicyLocal {
			continue
		}
		if !servedBy(slices(s), a.IP, node) {
			return reason.Errorf(reason.NoEndpoint,
				"no ready endpoint of Service %s is on this node, and its externalTrafficPolicy is Local", NameOf(s))
		}
	}
	return nil
}

func servedBy(slices []*discovery.EndpointSlice, ip netip.Addr, node string) bool {
	family := discovery.AddressTypeIPv6
	if ip.Is4() {
		family = discovery.AddressTypeIPv4
	}
	anyReady, serving := false, false
	for _, slice := range slices {
		if slice.AddressType != family {
			continue
		}
		for _, e := range slice.Endpoints {
			here := e.NodeName != nil && *e.NodeName == node
			ready := e.Conditions.Ready == nil || *e.Conditions.Ready
			if ready && here {
				return true
			}
			anyReady = anyReady || ready
			serving = serving || here && e.Conditions.Serving != nil && *e.Conditions.Serving
		}
	}
	return serving && !anyReady
}
