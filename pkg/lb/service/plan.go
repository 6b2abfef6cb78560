// Package service says which Services are ours, which addresses they ask for, and which of these wishes exclude each
// other; where a Service has endpoints; and what its status is to say. It does no I/O.
package service

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tinkerbell/stack/pkg/lb/reason"
)

// What a Service says to us beyond its own fields.
const (
	// AddressesAnnotation is the addresses that it asks for, separated by commas: one of each family. Without it,
	// spec.loadBalancerIP is.
	AddressesAnnotation = "stack-lb.tinkerbell.org/addresses"
	// InterfaceAnnotation names the nodes' link; without it, it is the link whose network has the address.
	InterfaceAnnotation = "stack-lb.tinkerbell.org/interface"
)

// Options are what decides which Services are ours.
type Options struct {
	// Class is the loadBalancerClass.
	Class string
	// Names are those of the Services; none is all of the class.
	Names []string
	// Mode is that of Services which do not say; empty is Announce.
	Mode Mode
	// Allowed are the prefixes of addresses that may be asked for; none is any.
	Allowed []netip.Prefix
}

// Address is one that is to be announced.
type Address struct {
	IP netip.Addr
	// Interface is the link's name, empty where none was named.
	Interface string
	// Services share the address, the oldest first.
	Services []*core.Service
}

// Wish is what came of what a Service asks for.
type Wish struct {
	Service *core.Service
	// Forward is what it asks of listeners of ours; nil in mode announce.
	Forward *Forward
	// Addresses are those that it gets.
	Addresses []netip.Addr
	// Refused is why it does not get the others.
	Refused []*reason.Error
}

// Plan is what is to be announced for all Services.
type Plan struct {
	Addresses map[netip.Addr]*Address
	Wishes    map[types.NamespacedName]*Wish
}

// NameOf is the name of a Service with its namespace.
func NameOf(s *core.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
}

// Ours tells a Service that is ours, and is not being deleted.
func (o Options) Ours(s *core.Service) bool {
	return s.Spec.Type == core.ServiceTypeLoadBalancer && s.Spec.LoadBalancerClass != nil &&
		*s.Spec.LoadBalancerClass == o.Class && s.DeletionTimestamp == nil &&
		(len(o.Names) == 0 || slices.Contains(o.Names, s.Name))
}

// Make makes the plan. The order of the Services does not matter: where wishes exclude each other, the older Service
// has its way.
func Make(services []*core.Service, o Options) Plan {
	plan := Plan{Addresses: map[netip.Addr]*Address{}, Wishes: map[types.NamespacedName]*Wish{}}
	var ours []*core.Service
	for _, s := range services {
		if o.Ours(s) {
			ours = append(ours, s)
		}
	}
	slices.SortFunc(ours, older)
	for _, s := range ours {
		wish := &Wish{Service: s}
		plan.Wishes[NameOf(s)] = wish
		addresses, fault := wanted(s)
		if fault == nil {
			wish.Forward, fault = o.forward(s)
		}
		if fault != nil {
			wish.Refused = []*reason.Error{fault}
			continue
		}
		for _, ip := range addresses {
			if fault := plan.refuse(s, ip, o); fault != nil {
				wish.Refused = append(wish.Refused, fault)
				continue
			}
			wish.Addresses = append(wish.Addresses, ip)
			if plan.Addresses[ip] == nil {
				plan.Addresses[ip] = &Address{IP: ip, Interface: s.Annotations[InterfaceAnnotation]}
			}
			plan.Addresses[ip].Services = append(plan.Addresses[ip].Services, s)
		}
	}
	return plan
}

func older(a, b *core.Service) int {
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
	)
}

// wanted reads which addresses a Service asks for.
func wanted(s *core.Service) ([]netip.Addr, *reason.Error) {
	text, field := s.Annotations[AddressesAnnotation], "annotation "+AddressesAnnotation
	if one := s.Spec.LoadBalancerIP; one != "" {
		if text != "" && !slices.Contains(split(text), one) {
			return nil, reason.Errorf(reason.AddressesDisagree,
				"spec.loadBalancerIP is %q and %s is %q: remove one of them", one, field, text)
		}
		if text == "" {
			text, field = one, "spec.loadBalancerIP"
		}
	}
	if strings.TrimSpace(text) == "" {
		return nil, reason.Errorf(reason.NoAddress,
			"the Service asks for no address: set the annotation %s, or spec.loadBalancerIP", AddressesAnnotation)
	}
	var all []netip.Addr
	for _, each := range split(text) {
		ip, err := netip.ParseAddr(each)
		if err != nil || !usable(ip.Unmap()) {
			return nil, reason.Errorf(reason.BadAddress,
				"%s: %q is no unicast IP address that a host can have; write it as 192.0.2.10 or 2001:db8::10", field, each)
		}
		ip = ip.Unmap()
		if !hasFamily(s, ip) {
			return nil, reason.Errorf(reason.FamilyMissing,
				"%s: %s is of a family that the Service does not have: see spec.ipFamilies and spec.ipFamilyPolicy", field, ip)
		}
		for _, other := range all {
			if other.Is4() == ip.Is4() {
				return nil, reason.Errorf(reason.BadAddress,
					"%s: %s and %s are of one family: one of each at most", field, other, ip)
			}
		}
		all = append(all, ip)
	}
	return all, nil
}

func split(text string) []string {
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// reserved are "this network" (RFC 791 section 3.2) and class E (RFC 1112 section 4) with the broadcast address.
var reserved = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("240.0.0.0/4")}

func usable(ip netip.Addr) bool {
	return !ip.IsUnspecified() && !ip.IsMulticast() && !ip.IsLoopback() && !ip.IsLinkLocalUnicast() && ip.Zone() == "" &&
		!slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func hasFamily(s *core.Service, ip netip.Addr) bool {
	family := core.IPv6Protocol
	if ip.Is4() {
		family = core.IPv4Protocol
	}
	return slices.Contains(s.Spec.IPFamilies, family)
}

// refuse says why a Service does not get an address, given what older ones got.
func (p Plan) refuse(s *core.Service, ip netip.Addr, o Options) *reason.Error {
	within := func(p netip.Prefix) bool { return p.Contains(ip) }
	if len(o.Allowed) > 0 && !slices.ContainsFunc(o.Allowed, within) {
		return reason.Errorf(reason.AddressNotAllowed,
			"%s is in none of the prefixes that may be asked for (STACK_LB_ADDRESSES): ask for one in %s", ip,
			join(o.Allowed))
	}
	taken := p.Addresses[ip]
	if taken == nil {
		return nil
	}
	first := taken.Services[0]
	if first.Namespace != s.Namespace {
		return reason.Errorf(reason.AddressTaken,
			"%s is the address of Service %s, and is shared within one namespace only: ask for another", ip, NameOf(first))
	}
	if name := s.Annotations[InterfaceAnnotation]; name != taken.Interface {
		return reason.Errorf(reason.InterfacesDisagree,
			"%s is shared with Service %s, which names the link %q, not %q: name the same", ip,
			NameOf(first), taken.Interface, name)
	}
	for _, other := range taken.Services {
		for _, a := range other.Spec.Ports {
			for _, b := range s.Spec.Ports {
				if a.Port == b.Port && a.Protocol == b.Protocol {
					return reason.Errorf(reason.PortTaken,
						"port %d/%s of %s is Service %s's: change the port, or ask for another address", a.Port,
						a.Protocol, ip, NameOf(other))
				}
			}
		}
	}
	return nil
}

func join(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = fmt.Sprint(p)
	}
	return strings.Join(texts, ", ")
}
