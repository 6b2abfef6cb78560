package service

import (
	"net/netip"
	"strings"
	"time"

	core "k8s.io/api/core/v1"

	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// Mode says who forwards what is sent to a Service's addresses.
type Mode string

// Modes.
const (
	// Announce leaves it to kube-proxy, or what stands in for it.
	Announce Mode = "announce"
	// Proxy is listeners of stack-lb, on the node that has the address.
	Proxy Mode = "proxy"
)

// What a Service in mode proxy says to us beyond its own fields.
const (
	// ModeAnnotation is the mode of one Service.
	ModeAnnotation = "stack-lb.tinkerbell.org/mode"
	// ProxyProtocolAnnotation asks for a PROXY header, v1 or v2, before each TCP connection to an endpoint.
	ProxyProtocolAnnotation = "stack-lb.tinkerbell.org/proxy-protocol"
)

// Forward is what a Service in mode proxy asks of its listeners.
type Forward struct {
	// Sources are the prefixes of clients that are served; none is all.
	Sources []netip.Prefix
	// Header is the version of the PROXY header that TCP endpoints get; 0 is none.
	Header int
	// Affinity is how long after its last connection a client meets the same endpoint again; 0 is not at all.
	Affinity time.Duration
	// Local takes endpoints of the listener's own node only.
	Local bool
}

// forward reads what a Service asks of listeners; nil is a Service in mode announce.
func (o Options) forward(s *core.Service) (*Forward, *reason.Error) {
	mode, field := o.Mode, "STACK_LB_MODE"
	if text, ok := s.Annotations[ModeAnnotation]; ok {
		mode, field = Mode(strings.TrimSpace(text)), "annotation "+ModeAnnotation
	}
	switch mode {
	case Announce, "":
		return nil, nil
	case Proxy:
	default:
		return nil, reason.Errorf(reason.BadMode, "%s is %q: write %s or %s", field, mode, Announce, Proxy)
	}
	f := &Forward{Local: s.Spec.ExternalTrafficPolicy == core.ServiceExternalTrafficPolicyLocal}
	for _, p := range s.Spec.Ports {
		if p.Protocol != core.ProtocolTCP && p.Protocol != core.ProtocolUDP {
			return nil, reason.Errorf(reason.ProtocolUnsupported,
				"port %d/%s: mode proxy forwards TCP and UDP: remove the port, or set mode announce", p.Port, p.Protocol)
		}
	}
	switch text := strings.TrimSpace(s.Annotations[ProxyProtocolAnnotation]); text {
	case "":
	case "v1":
		f.Header = 1
	case "v2":
		f.Header = 2
	default:
		return nil, reason.Errorf(reason.BadProxyProtocol,
			"annotation %s is %q: write v2 or v1", ProxyProtocolAnnotation, text)
	}
	for _, text := range s.Spec.LoadBalancerSourceRanges {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, reason.Errorf(reason.BadSourceRange,
				"spec.loadBalancerSourceRanges: %q is no prefix: write it as 192.0.2.0/24 or 2001:db8::/64", text)
		}
		f.Sources = append(f.Sources, prefix.Masked())
	}
	if s.Spec.SessionAffinity == core.ServiceAffinityClientIP {
		f.Affinity = time.Duration(core.DefaultClientIPServiceAffinitySeconds) * time.Second
		if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			f.Affinity = time.Duration(*c.ClientIP.TimeoutSeconds) * time.Second
		}
	}
	return f, f.hides(s)
}

// hides says that externalTrafficPolicy: Local promises endpoints the client's address, and nothing would tell it.
func (f *Forward) hides(s *core.Service) *reason.Error {
	if !f.Local {
		return nil
	}
	if f.Header == 0 {
		return reason.Errorf(reason.SourceHidden,
			"externalTrafficPolicy is Local, which promises the client's address, and mode proxy hides it: set the "+
				"annotation %s if the endpoints read that header, or externalTrafficPolicy Cluster, or mode announce",
			ProxyProtocolAnnotation)
	}
	for _, p := range s.Spec.Ports {
		if p.Protocol == core.ProtocolUDP {
			return reason.Errorf(reason.SourceHidden,
				"port %d/UDP: externalTrafficPolicy is Local, which promises the client's address, and no PROXY header goes "+
					"before a datagram: set externalTrafficPolicy Cluster, or mode announce", p.Port)
		}
	}
	return nil
}
