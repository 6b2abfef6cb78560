package relay

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
)

// TestRoutersThatSayNothingOfDHCPv6 are named while machines ask, unless another router of the link does its part.
func TestRoutersThatSayNothingOfDHCPv6(t *testing.T) {
	first, second := ip("fe80::1"), ip("fe80::2")
	ad := func(router [16]byte, managed, other bool) frame.Advertisement {
		return frame.Advertisement{Router: router, Managed: managed, Other: other}
	}
	tests := map[string]struct {
		heard []frame.Advertisement
		kind  dhcp6.Type
		later time.Duration
		want  bool
	}{
		"no router":                       {kind: dhcp6.Solicit},
		"neither flag":                    {heard: []frame.Advertisement{ad(first, false, false)}, kind: dhcp6.Solicit, want: true},
		"neither flag, stateless":         {heard: []frame.Advertisement{ad(first, false, false)}, kind: dhcp6.InformationRequest, want: true},
		"neither flag, renewal":           {heard: []frame.Advertisement{ad(first, false, false)}, kind: dhcp6.Renew},
		"managed":                         {heard: []frame.Advertisement{ad(first, true, false)}, kind: dhcp6.Solicit},
		"managed, stateless":              {heard: []frame.Advertisement{ad(first, true, false)}, kind: dhcp6.InformationRequest},
		"other":                           {heard: []frame.Advertisement{ad(first, false, true)}, kind: dhcp6.Solicit, want: true},
		"other, stateless":                {heard: []frame.Advertisement{ad(first, false, true)}, kind: dhcp6.InformationRequest},
		"another router manages":          {heard: []frame.Advertisement{ad(first, false, false), ad(second, true, false)}, kind: dhcp6.Solicit},
		"it has changed its mind":         {heard: []frame.Advertisement{ad(first, false, false), ad(first, true, true)}, kind: dhcp6.Solicit},
		"and for the worse":               {heard: []frame.Advertisement{ad(first, true, true), ad(first, false, false)}, kind: dhcp6.Solicit, want: true},
		"long ago":                        {heard: []frame.Advertisement{ad(first, false, false)}, kind: dhcp6.Solicit, later: time.Hour},
		"more routers than are kept":      {heard: []frame.Advertisement{ad(ip("fe80::3"), true, false), ad(ip("fe80::4"), false, false), ad(ip("fe80::5"), false, false), ad(ip("fe80::6"), false, false), ad(ip("fe80::7"), false, false)}, kind: dhcp6.Solicit, want: true},
		"and one that is heard of always": {heard: []frame.Advertisement{ad(ip("fe80::4"), false, false), ad(ip("fe80::5"), false, false), ad(ip("fe80::6"), false, false), ad(ip("fe80::7"), false, false), ad(first, true, false)}, kind: dhcp6.Solicit},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench6(t, nil)
			v := b.vlans[0]
			for i, said := range test.heard {
				v.routers.note(said, int64(i))
			}
			(*v6)(nil).countUnadvertised(v, &arrival{kind: int(test.kind)}, int64(len(test.heard))+int64(test.later))
			if got := testutil.ToFloat64(v.counters.own[unadvertised]); got != 0 != test.want {
				t.Errorf("counted %v, want %v", got, test.want)
			}
		})
	}
}

// TestRoutersOfOtherLinks: this link's router need not advertise anything to the machines behind another relay agent.
func TestRoutersOfOtherLinks(t *testing.T) {
	b := newBench6(t, nil)
	v := b.vlans[0]
	v.routers.note(frame.Advertisement{Router: ip("fe80::1")}, 0)
	for _, test := range []struct {
		source [16]byte
		m      dhcp6.Message
		want   float64
	}{
		{source: agentIP, m: nest(1, message6(dhcp6.Solicit)), want: 0},
		{source: clientIP, m: message6(dhcp6.Solicit), want: 1},
	} {
		a := b.heard
		a.source.ip = test.source
		if _, drop := b.hear(test.m, &a); drop != None {
			t.Fatal(drop)
		}
		(*v6)(nil).countUnadvertised(v, &a, 1)
		if got := testutil.ToFloat64(v.counters.own[unadvertised]); got != test.want {
			t.Errorf("after a message of %v counted %v, want %v", test.m.Type(), got, test.want)
		}
	}
}
