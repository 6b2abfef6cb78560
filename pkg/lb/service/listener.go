package service

import (
	"fmt"
	"net/netip"
	"strings"

	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// Listener is one port of a Service in mode proxy, at one of its addresses.
type Listener struct {
	Service *core.Service
	IP      netip.Addr
	Port    core.ServicePort
	Forward *Forward
}

// AddrPort is where it listens.
func (l Listener) AddrPort() netip.AddrPort { return netip.AddrPortFrom(l.IP, uint16(l.Port.Port)) }

// String names the listener: the Service, the address with the port, the protocol.
func (l Listener) String() string {
	return fmt.Sprintf("%s %s/%s", NameOf(l.Service), l.AddrPort(), strings.ToLower(string(l.Port.Protocol)))
}

// Listeners are those of all Services in mode proxy.
func (p Plan) Listeners() []Listener {
	var all []Listener
	for _, wish := range p.Wishes {
		all = append(all, wish.listeners()...)
	}
	return all
}

func (w *Wish) listeners() []Listener {
	if w.Forward == nil {
		return nil
	}
	var all []Listener
	for _, ip := range w.Addresses {
		for _, port := range w.Service.Spec.Ports {
			all = append(all, Listener{Service: w.Service, IP: ip, Port: port, Forward: w.Forward})
		}
	}
	return all
}

func (p Plan) listensAt(at netip.AddrPort, protocol core.Protocol) bool {
	address := p.Addresses[at.Addr()]
	if address == nil {
		return false
	}
	for _, s := range address.Services {
		wish := p.Wishes[NameOf(s)]
		if wish == nil || wish.Forward == nil {
			continue
		}
		for _, port := range s.Spec.Ports {
			if uint16(port.Port) == at.Port() && port.Protocol == protocol {
				return true
			}
		}
	}
	return false
}

// Forwards says why what is sent to a Service in mode proxy does not arrive, nil if it does: as far as the API tells,
// whatever node has the address. slices are the Service's.
func (p Plan) Forwards(w *Wish, slices []*discovery.EndpointSlice) *reason.Error {
	for _, l := range w.listeners() {
		anywhere := *l.Forward
		anywhere.Local = false
		l.Forward = &anywhere
		if len(p.Endpoints(l, slices, "")) == 0 {
			return reason.Errorf(reason.NoEndpoint,
				"no endpoint is ready for port %d/%s of %s, and connections are refused: look at the Service's selector and "+
					"port name, and at the readiness of its pods", l.Port.Port, l.Port.Protocol, l.IP)
		}
	}
	return nil
}
