package service

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/lb/reason"
)

var compareAddrs = cmp.Options{
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// What a Service asks of listeners, and what of it cannot be had, with what to do.
func TestForward(t *testing.T) {
	local := func(s *core.Service) { s.Spec.ExternalTrafficPolicy = core.ServiceExternalTrafficPolicyLocal }
	affine := func(s *core.Service) { s.Spec.SessionAffinity = core.ServiceAffinityClientIP }
	ranges := func(all ...string) func(*core.Service) {
		return func(s *core.Service) { s.Spec.LoadBalancerSourceRanges = all }
	}
	tests := map[string]struct {
		mode   Mode // of those that do not say
		change []func(*core.Service)
		want   *Forward
		fault  reason.Reason
		do     string
	}{
		"announces":              {},
		"announces by a setting": {mode: Announce, change: []func(*core.Service){local, ranges("nonsense")}},
		"announces itself":       {mode: Proxy, change: []func(*core.Service){annotated(ModeAnnotation, "announce")}},
		"proxy by the setting":   {mode: Proxy, want: &Forward{}},
		"proxy by itself":        {change: []func(*core.Service){annotated(ModeAnnotation, " proxy ")}, want: &Forward{}},
		"no mode": {
			change: []func(*core.Service){annotated(ModeAnnotation, "")}, // as none
		},
		"unheard of": {
			change: []func(*core.Service){annotated(ModeAnnotation, "ipvs")}, fault: reason.BadMode, do: "write announce or proxy",
		},
		"affinity": {mode: Proxy, change: []func(*core.Service){affine}, want: &Forward{Affinity: 3 * time.Hour}},
		"affinity for long": {mode: Proxy, change: []func(*core.Service){affine, func(s *core.Service) {
			s.Spec.SessionAffinityConfig = &core.SessionAffinityConfig{ClientIP: &core.ClientIPConfig{TimeoutSeconds: to(int32(7))}}
		}}, want: &Forward{Affinity: 7 * time.Second}},
		"sources": {
			mode: Proxy, change: []func(*core.Service){ranges("192.0.2.9/24", " 2001:db8::/64 ")},
			want: &Forward{Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}},
		},
		"bad source": {
			mode: Proxy, change: []func(*core.Service){ranges("192.0.2.0/24", "192.0.2.0")}, fault: reason.BadSourceRange,
			do: "\"192.0.2.0\" is no prefix: write it as",
		},
		"header": {
			mode: Proxy, change: []func(*core.Service){annotated(ProxyProtocolAnnotation, "v2")}, want: &Forward{Header: 2},
		},
		"bad header": {
			mode: Proxy, change: []func(*core.Service){annotated(ProxyProtocolAnnotation, "true")}, fault: reason.BadProxyProtocol,
			do: "write v2 or v1",
		},
		"hides the client": {
			mode: Proxy, change: []func(*core.Service){local}, fault: reason.SourceHidden, do: "or externalTrafficPolicy Cluster",
		},
		"tells the client by a header": {
			mode: Proxy, change: []func(*core.Service){local, annotated(ProxyProtocolAnnotation, "v1")},
			want: &Forward{Header: 1, Local: true},
		},
		"no header before datagrams": {
			mode: Proxy, change: []func(*core.Service){local, annotated(ProxyProtocolAnnotation, "v2"), port(69, core.ProtocolUDP)},
			fault: reason.SourceHidden, do: "port 69/UDP",
		},
		"sctp": {
			mode: Proxy, change: []func(*core.Service){port(80, core.ProtocolSCTP)}, fault: reason.ProtocolUnsupported,
			do: "remove the port, or set mode announce",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := make1("n/a", "192.0.2.10", test.change...)
			wish := Make([]*core.Service{s}, Options{Class: class, Mode: test.mode}).Wishes[NameOf(s)]
			if test.fault == reason.Announced {
				if diff := cmp.Diff(test.want, wish.Forward, compareAddrs); diff != "" || len(wish.Refused) > 0 {
					t.Errorf("%v\n%s", wish.Refused, diff)
				}
				return
			}
			if len(wish.Refused) != 1 || len(wish.Addresses) > 0 || wish.Refused[0].Reason != test.fault ||
				!strings.Contains(wish.Refused[0].Text, test.do) {
				t.Errorf("got %v with %v, want %v: ...%s", wish.Refused, wish.Addresses, test.fault, test.do)
			}
		})
	}
}

func at(text string, m endpoint.Member) endpoint.Member {
	m.Addr = netip.MustParseAddrPort(text)
	return m
}

func TestEndpoints(t *testing.T) {
	member := endpoint.Member{}
	one := func(ip string, change ...func(*discovery.Endpoint)) discovery.Endpoint {
		e := discovery.Endpoint{Addresses: []string{ip}, NodeName: to("n2")}
		for _, f := range change {
			f(&e)
		}
		return e
	}
	state := func(ready, serving bool) func(*discovery.Endpoint) {
		return func(e *discovery.Endpoint) {
			e.Conditions = discovery.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: to(!ready)}
		}
	}
	here := func(e *discovery.Endpoint) { e.NodeName = to("n1") }
	slice := func(name string, number int32, protocol core.Protocol, endpoints ...discovery.Endpoint) *discovery.EndpointSlice {
		return &discovery.EndpointSlice{
			AddressType: discovery.AddressTypeIPv4, Endpoints: endpoints,
			Ports: []discovery.EndpointPort{
				{Name: to("other"), Port: to(int32(1)), Protocol: to(core.ProtocolTCP)}, {Name: &name, Port: &number, Protocol: &protocol},
			},
		}
	}
	tcp := func(endpoints ...discovery.Endpoint) *discovery.EndpointSlice {
		return slice("web", 8080, core.ProtocolTCP, endpoints...)
	}
	tests := map[string]struct {
		slices []*discovery.EndpointSlice
		local  bool
		want   []endpoint.Member
	}{
		"none": {},
		"states": {
			slices: []*discovery.EndpointSlice{tcp(one("10.0.0.1"), one("10.0.0.2", state(false, true)), one("10.0.0.3", state(false, false)))},
			want:   []endpoint.Member{at("10.0.0.1:8080", member), at("10.0.0.2:8080", endpoint.Member{Fallback: true})},
		},
		"a name with a port of its own in each slice": {
			slices: []*discovery.EndpointSlice{tcp(one("10.0.0.1")), slice("web", 8081, core.ProtocolTCP, one("10.0.0.2"))},
			want:   []endpoint.Member{at("10.0.0.1:8080", member), at("10.0.0.2:8081", member)},
		},
		"another protocol": {slices: []*discovery.EndpointSlice{slice("web", 8080, core.ProtocolUDP, one("10.0.0.1"))}},
		"another name":     {slices: []*discovery.EndpointSlice{slice("8080", 8080, core.ProtocolTCP, one("10.0.0.1"))}},
		"another family": {slices: []*discovery.EndpointSlice{{
			AddressType: discovery.AddressTypeIPv6, Ports: tcp().Ports, Endpoints: []discovery.Endpoint{one("2001:db8::1")},
		}}},
		"twice": {
			slices: []*discovery.EndpointSlice{tcp(one("10.0.0.1", state(false, true))), tcp(one("10.0.0.1"))},
			want:   []endpoint.Member{at("10.0.0.1:8080", member)},
		},
		"local": {
			slices: []*discovery.EndpointSlice{tcp(one("10.0.0.1"), one("10.0.0.2", here))}, local: true,
			want: []endpoint.Member{at("10.0.0.2:8080", member)},
		},
		"the node's own loopback, and the like": {
			slices: []*discovery.EndpointSlice{tcp(one("127.0.0.1"), one("169.254.169.254"), one("0.0.0.0"), one("x"), one("10.0.0.1"))},
			want:   []endpoint.Member{at("10.0.0.1:8080", member)},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := Listener{
				Service: make1("n/a", ""), IP: netip.MustParseAddr("192.0.2.10"), Forward: &Forward{Local: test.local},
				Port: core.ServicePort{Name: "web", Port: 80, Protocol: core.ProtocolTCP},
			}
			got := Plan{}.Endpoints(l, test.slices, "n1")
			if diff := cmp.Diff(test.want, got, compareAddrs); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Where a Service in mode proxy does not forward, its condition says why and what to do; ipMode follows the mode.
func TestForwardingCondition(t *testing.T) {
	proxied := annotated(ModeAnnotation, "proxy")
	a, b := make1("n/a", "192.0.2.10", proxied), make1("n/b", "192.0.2.11", proxied)
	ready := func(ip string, number int32) []*discovery.EndpointSlice {
		return []*discovery.EndpointSlice{{
			AddressType: discovery.AddressTypeIPv4, Ports: []discovery.EndpointPort{{Port: &number}},
			Endpoints: []discovery.Endpoint{{Addresses: []string{ip}}},
		}}
	}
	plan := Make([]*core.Service{a, b}, Options{Class: class})
	holders := map[netip.Addr]Holder{netip.MustParseAddr("192.0.2.10"): {Node: "n1"}}
	for _, test := range []struct {
		slices []*discovery.EndpointSlice
		want   reason.Reason
		text   string
	}{
		{nil, reason.NoEndpoint, "no endpoint is ready for port 80/TCP of 192.0.2.10"},
		{ready("10.0.0.1", 8080), reason.Forwarding, "every port"},
		{ready("192.0.2.10", 80), reason.NoEndpoint, ""},
		{ready("192.0.2.11", 80), reason.NoEndpoint, ""},
		{ready("192.0.2.10", 81), reason.Forwarding, ""}, // nobody listens there: that is no loop
	} {
		wish := plan.Wishes[NameOf(a)]
		status, _ := Status(wish, holders, plan.Forwards(wish, test.slices))
		if len(status.Conditions) != 2 {
			t.Fatalf("conditions %v", status.Conditions)
		}
		c := status.Conditions[1]
		if c.Type != ForwardingType || c.Reason != test.want.String() || !strings.Contains(c.Message, test.text) ||
			(c.Status == "True") != (test.want == reason.Forwarding) {
			t.Errorf("got %+v, want %v: %s", c, test.want, test.text)
		}
		if in := status.LoadBalancer.Ingress; len(in) != 1 || *in[0].IPMode != core.LoadBalancerIPModeProxy {
			t.Errorf("ingress %+v", in)
		}
		before := a.DeepCopy()
		before.Status = status
		delete(before.Annotations, ModeAnnotation)
		announced := Make([]*core.Service{before}, Options{Class: class, Mode: Announce})
		status, changed := Status(announced.Wishes[NameOf(a)], holders, nil)
		if !changed || len(status.Conditions) != 1 || *status.LoadBalancer.Ingress[0].IPMode != core.LoadBalancerIPModeVIP {
			t.Errorf("back in mode announce: %+v, changed %v", status, changed)
		}
	}
}
