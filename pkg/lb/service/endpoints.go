package service

import (
	"net/netip"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"github.com/tinkerbell/stack/pkg/endpoint"
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
	anyReady, served := false, false
	for _, slice := range slices {
		if slice.AddressType != familyOf(ip) {
			continue
		}
		for _, e := range slice.Endpoints {
			here := on(e, node)
			if ready(e) && here {
				return true
			}
			anyReady = anyReady || ready(e)
			served = served || here && serving(e)
		}
	}
	return served && !anyReady
}

func familyOf(ip netip.Addr) discovery.AddressType {
	if ip.Is4() {
		return discovery.AddressTypeIPv4
	}
	return discovery.AddressTypeIPv6
}

// A condition that is not told means ready, and nothing of serving.

func ready(e discovery.Endpoint) bool   { return e.Conditions.Ready == nil || *e.Conditions.Ready }
func serving(e discovery.Endpoint) bool { return e.Conditions.Serving != nil && *e.Conditions.Serving }

func on(e discovery.Endpoint, node string) bool { return e.NodeName != nil && *e.NodeName == node }

// Endpoints are those that a listener on a node forwards to: ready ones, and as their fallback those that still serve
// while they terminate (KEP-1669). An endpoint counts once, in however many slices it is, and not at all where stack-lb
// itself listens: a connection to it would come back.
func (p Plan) Endpoints(l Listener, slices []*discovery.EndpointSlice, node string) (members []endpoint.Member) {
	index := map[netip.AddrPort]int{}
	add := func(m endpoint.Member) {
		switch i, known := index[m.Addr]; {
		// The node's own loopback and the like are nobody's endpoint.
		case !usable(m.Addr.Addr()) || p.listensAt(m.Addr, l.Port.Protocol):
		case !known:
			index[m.Addr] = len(members)
			members = append(members, m)
		case members[i].Fallback:
			members[i] = m // a ready one takes the place of one that terminates
		}
	}
	for _, slice := range slices {
		number := portOf(slice, l.Port)
		if slice.AddressType != familyOf(l.IP) || number == 0 {
			continue
		}
		for _, e := range slice.Endpoints {
			if !ready(e) && !serving(e) || l.Forward.Local && !on(e, node) {
				continue
			}
			m := endpoint.Member{Fallback: !ready(e)}
			for _, text := range e.Addresses {
				if ip, err := netip.ParseAddr(text); err == nil {
					m.Addr = netip.AddrPortFrom(ip.Unmap(), number)
					add(m)
				}
			}
		}
	}
	return members
}

// portOf is the number of a Service's port in a slice, by the name that the Service gives it; 0 is none.
func portOf(slice *discovery.EndpointSlice, port core.ServicePort) uint16 {
	for _, p := range slice.Ports {
		name, protocol := "", core.ProtocolTCP
		if p.Name != nil {
			name = *p.Name
		}
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		if name == port.Name && protocol == port.Protocol && p.Port != nil && *p.Port > 0 && *p.Port <= 65535 {
			return uint16(*p.Port)
		}
	}
	return 0
}
