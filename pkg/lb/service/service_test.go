package service

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tinkerbell/stack/pkg/lb/reason"
)

const class = "tinkerbell.org/stack-lb"

func to[T any](v T) *T { return &v }

// make1 makes a Service of our class with port 80/TCP that asks for an address; it gets older by its name.
func make1(name, address string, change ...func(*core.Service)) *core.Service {
	namespace, short, _ := strings.Cut(name, "/")
	s := &core.Service{
		ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: short, CreationTimestamp: meta.NewTime(time.Unix(int64(short[0]), 0))},
		Spec: core.ServiceSpec{
			Type: core.ServiceTypeLoadBalancer, LoadBalancerClass: to(class), LoadBalancerIP: address,
			IPFamilies: []core.IPFamily{core.IPv4Protocol, core.IPv6Protocol},
			Ports:      []core.ServicePort{{Port: 80, Protocol: core.ProtocolTCP}},
		},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func annotated(pairs ...string) func(*core.Service) {
	return func(s *core.Service) {
		s.Annotations = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			s.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func port(number int32, protocol core.Protocol) func(*core.Service) {
	return func(s *core.Service) { s.Spec.Ports = []core.ServicePort{{Port: number, Protocol: protocol}} }
}

func TestPlan(t *testing.T) {
	v4 := func(s *core.Service) { s.Spec.IPFamilies = []core.IPFamily{core.IPv4Protocol} }
	tests := map[string]struct {
		services []*core.Service
		allowed  []netip.Prefix
		want     map[string]string // Service → its addresses, or the reasons of its refusals
	}{
		"asks in the spec":       {services: []*core.Service{make1("n/a", "192.0.2.10")}, want: map[string]string{"n/a": "192.0.2.10"}},
		"asks by the annotation": {services: []*core.Service{make1("n/a", "", annotated(AddressesAnnotation, "192.0.2.10"))}, want: map[string]string{"n/a": "192.0.2.10"}},
		"two families": {
			services: []*core.Service{make1("n/a", "", annotated(AddressesAnnotation, "192.0.2.10, 2001:db8::10"))},
			want:     map[string]string{"n/a": "192.0.2.10 2001:db8::10"},
		},
		"both fields agree": {
			services: []*core.Service{make1("n/a", "192.0.2.10", annotated(AddressesAnnotation, "192.0.2.10,2001:db8::10"))},
			want:     map[string]string{"n/a": "192.0.2.10 2001:db8::10"},
		},
		"both fields differ": {
			services: []*core.Service{make1("n/a", "192.0.2.11", annotated(AddressesAnnotation, "192.0.2.10"))},
			want:     map[string]string{"n/a": "AddressesDisagree"},
		},
		"asks for nothing": {services: []*core.Service{make1("n/a", "")}, want: map[string]string{"n/a": "NoAddress"}},
		"no address":       {services: []*core.Service{make1("n/a", "lb.example.com")}, want: map[string]string{"n/a": "BadAddress"}},
		"multicast":        {services: []*core.Service{make1("n/a", "224.0.0.1")}, want: map[string]string{"n/a": "BadAddress"}},
		"broadcast":        {services: []*core.Service{make1("n/a", "255.255.255.255")}, want: map[string]string{"n/a": "BadAddress"}},
		"class E":          {services: []*core.Service{make1("n/a", "240.0.0.1")}, want: map[string]string{"n/a": "BadAddress"}},
		"this network":     {services: []*core.Service{make1("n/a", "0.1.2.3")}, want: map[string]string{"n/a": "BadAddress"}},
		"mapped nothing":   {services: []*core.Service{make1("n/a", "::ffff:0.0.0.0")}, want: map[string]string{"n/a": "BadAddress"}},
		"loopback":         {services: []*core.Service{make1("n/a", "::1")}, want: map[string]string{"n/a": "BadAddress"}},
		"link-local":       {services: []*core.Service{make1("n/a", "fe80::1%eth0")}, want: map[string]string{"n/a": "BadAddress"}},
		"two of a family": {
			services: []*core.Service{make1("n/a", "", annotated(AddressesAnnotation, "192.0.2.10,192.0.2.11"))},
			want:     map[string]string{"n/a": "BadAddress"},
		},
		"a family that it does not have": {
			services: []*core.Service{make1("n/a", "2001:db8::10", v4)}, want: map[string]string{"n/a": "FamilyMissing"},
		},
		"not allowed": {
			services: []*core.Service{make1("n/a", "192.0.2.10"), make1("n/b", "198.51.100.1")},
			allowed:  []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28")},
			want:     map[string]string{"n/a": "192.0.2.10", "n/b": "AddressNotAllowed"},
		},
		"shared by distinct ports": {
			services: []*core.Service{
				make1("n/a", "192.0.2.10"), make1("n/b", "192.0.2.10", port(80, core.ProtocolUDP)),
				make1("n/c", "192.0.2.10", port(81, core.ProtocolTCP)),
			},
			want: map[string]string{"n/a": "192.0.2.10", "n/b": "192.0.2.10", "n/c": "192.0.2.10"},
		},
		"the older Service keeps its port": {
			services: []*core.Service{make1("n/b", "192.0.2.10"), make1("n/a", "192.0.2.10")},
			want:     map[string]string{"n/a": "192.0.2.10", "n/b": "PortTaken"},
		},
		"one address of two is taken": {
			services: []*core.Service{
				make1("n/a", "192.0.2.10"), make1("n/b", "", annotated(AddressesAnnotation, "192.0.2.10,2001:db8::10")),
			},
			want: map[string]string{"n/a": "192.0.2.10", "n/b": "2001:db8::10 PortTaken"},
		},
		"another namespace's": {
			services: []*core.Service{make1("n/a", "192.0.2.10"), make1("m/b", "192.0.2.10", port(81, core.ProtocolTCP))},
			want:     map[string]string{"n/a": "192.0.2.10", "m/b": "AddressTaken"},
		},
		"links disagree": {
			services: []*core.Service{
				make1("n/a", "192.0.2.10"), make1("n/b", "192.0.2.10", port(81, core.ProtocolTCP), annotated(InterfaceAnnotation, "eth1")),
			},
			want: map[string]string{"n/a": "192.0.2.10", "n/b": "InterfacesDisagree"},
		},
		"not ours": {
			services: []*core.Service{
				make1("n/a", "192.0.2.10", func(s *core.Service) { s.Spec.LoadBalancerClass = nil }),
				make1("n/b", "192.0.2.10", func(s *core.Service) { s.Spec.LoadBalancerClass = to("kube-vip.io/kube-vip-class") }),
				make1("n/c", "192.0.2.10", func(s *core.Service) { s.Spec.Type = core.ServiceTypeClusterIP }),
				make1("n/d", "192.0.2.10", func(s *core.Service) { s.DeletionTimestamp = to(meta.Now()) }),
				make1("n/e", "", func(s *core.Service) { s.Spec.ExternalIPs = []string{"192.0.2.10"} }),
			},
			want: map[string]string{"n/e": "NoAddress"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				plan := Make(test.services, Options{Class: class, Allowed: test.allowed})
				got := map[string]string{}
				for name, wish := range plan.Wishes {
					var said []string
					for _, ip := range wish.Addresses {
						said = append(said, ip.String())
						if !slices.Contains(plan.Addresses[ip].Services, wish.Service) {
							t.Errorf("%s is not among those of %s", name, ip)
						}
					}
					for _, why := range wish.Refused {
						said = append(said, why.Reason.String())
					}
					got[name.String()] = strings.Join(said, " ")
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				slices.Reverse(test.services) // the order does not matter
			}
		})
	}
}

func TestServes(t *testing.T) {
	endpoint := func(node string, ready, serving bool) discovery.Endpoint {
		return discovery.Endpoint{NodeName: &node, Conditions: discovery.EndpointConditions{Ready: &ready, Serving: &serving}}
	}
	slice := func(family discovery.AddressType, endpoints ...discovery.Endpoint) *discovery.EndpointSlice {
		return &discovery.EndpointSlice{AddressType: family, Endpoints: endpoints}
	}
	local := func(s *core.Service) { s.Spec.ExternalTrafficPolicy = core.ServiceExternalTrafficPolicyLocal }
	tests := map[string]struct {
		services []*core.Service
		slices   map[string][]*discovery.EndpointSlice
		want     bool
	}{
		"Cluster needs no endpoint": {services: []*core.Service{make1("n/a", "")}, want: true},
		"Local and none":            {services: []*core.Service{make1("n/a", "", local)}},
		"Local and ready here": {
			services: []*core.Service{make1("n/a", "", local)},
			slices:   map[string][]*discovery.EndpointSlice{"a": {slice("IPv4", endpoint("n2", true, true)), slice("IPv4", endpoint("n1", true, true))}},
			want:     true,
		},
		"Local and ready elsewhere": {
			services: []*core.Service{make1("n/a", "", local)},
			slices:   map[string][]*discovery.EndpointSlice{"a": {slice("IPv4", endpoint("n2", true, true))}},
		},
		"of the other family": {
			services: []*core.Service{make1("n/a", "", local)},
			slices:   map[string][]*discovery.EndpointSlice{"a": {slice("IPv6", endpoint("n1", true, true))}},
		},
		"terminates here, ready elsewhere": {
			services: []*core.Service{make1("n/a", "", local)},
			slices:   map[string][]*discovery.EndpointSlice{"a": {slice("IPv4", endpoint("n1", false, true), endpoint("n2", true, true))}},
		},
		"terminates here, ready nowhere": {
			services: []*core.Service{make1("n/a", "", local)},
			slices:   map[string][]*discovery.EndpointSlice{"a": {slice("IPv4", endpoint("n1", false, true), endpoint("n2", false, false))}},
			want:     true,
		},
		"one of two Services": {
			services: []*core.Service{make1("n/a", "", local), make1("n/b", "", local)},
			slices:   map[string][]*discovery.EndpointSlice{"a": {slice("IPv4", endpoint("n1", true, true))}},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			why := Serves(&Address{IP: netip.MustParseAddr("192.0.2.10"), Services: test.services}, "n1",
				func(s *core.Service) []*discovery.EndpointSlice { return test.slices[s.Name] })
			if (why == nil) != test.want {
				t.Errorf("got %v", why)
			}
			if why != nil && why.Reason != reason.NoEndpoint {
				t.Errorf("reason %s", why.Reason)
			}
		})
	}
}

func TestStatus(t *testing.T) {
	one, six := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")
	s := make1("n/a", "192.0.2.10")
	wish := &Wish{Service: s, Addresses: []netip.Addr{one, six}}
	steps := []struct {
		name    string
		holders map[netip.Addr]Holder
		refused []*reason.Error
		ingress []string
		want    string // status, reason and message of the condition
		changed bool
	}{
		{
			name: "nobody yet", holders: map[netip.Addr]Holder{one: {Why: reason.Errorf(reason.NoLink, "no link")}},
			want: "False NoLink no node announces 192.0.2.10; no link; no node announces 2001:db8::10", changed: true,
		},
		{name: "nobody again", holders: map[netip.Addr]Holder{one: {Why: reason.Errorf(reason.NoLink, "no link")}},
			want: "False NoLink no node announces 192.0.2.10; no link; no node announces 2001:db8::10"},
		{
			name: "both", holders: map[netip.Addr]Holder{one: {Node: "n1"}, six: {Node: "n2"}}, ingress: []string{"192.0.2.10", "2001:db8::10"},
			want: "True Announced 192.0.2.10 is announced by node n1; 2001:db8::10 is announced by node n2", changed: true,
		},
		{
			name: "both again", holders: map[netip.Addr]Holder{one: {Node: "n1"}, six: {Node: "n2"}}, ingress: []string{"192.0.2.10", "2001:db8::10"},
			want: "True Announced 192.0.2.10 is announced by node n1; 2001:db8::10 is announced by node n2",
		},
		{
			name: "between two nodes", holders: map[netip.Addr]Holder{six: {Node: "n2"}}, ingress: []string{"192.0.2.10", "2001:db8::10"},
			want: "False NoNode no node announces 192.0.2.10; 2001:db8::10 is announced by node n2", changed: true,
		},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			status, changed := Status(wish, step.holders, nil)
			if changed != step.changed {
				t.Errorf("changed %v", changed)
			}
			var ingress []string
			for _, i := range status.LoadBalancer.Ingress {
				ingress = append(ingress, i.IP)
				if i.IPMode == nil || *i.IPMode != core.LoadBalancerIPModeVIP {
					t.Errorf("ipMode of %s is %v", i.IP, i.IPMode)
				}
			}
			c := status.Conditions[0]
			got := string(c.Status) + " " + c.Reason + " " + c.Message
			if diff := cmp.Diff([]any{step.ingress, step.want}, []any{ingress, got}); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			wish.Service = s.DeepCopy() // as the API gives it back: the same values at other places
			wish.Service.Status = *status.DeepCopy()
		})
	}
	gone := wish.Service.DeepCopy()
	gone.Spec.Type, gone.Spec.LoadBalancerClass = core.ServiceTypeClusterIP, nil
	status, changed := Without(gone)
	if !changed || len(status.Conditions) > 0 || len(status.LoadBalancer.Ingress) > 0 {
		t.Errorf("left %+v", status)
	}
	gone.Status = status
	if _, changed := Without(gone); changed {
		t.Error("changed again")
	}
}
