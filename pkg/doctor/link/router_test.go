package link

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/frame"
)

// advertisement is a frame with a router's advertisement and options.
func advertisement(options ...byte) Received {
	l := &Link{MAC: frame.MAC{2, 0, 0, 0, 0, 1}}
	body := append([]byte{134, 0, 0, 0, 64, 0x80, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}, options...)
	group := netip.MustParseAddr("ff02::1")
	return Received{Frame: l.icmp6(l.LinkLocal(), group, frame.GroupMAC(group.As16()), body)}
}

func prefixOption(flags byte, prefix string) []byte {
	p := netip.MustParsePrefix(prefix)
	network := p.Addr().As16()
	return append(append([]byte{3, 4, byte(p.Bits()), flags}, make([]byte, 12)...), network[:]...)
}

func TestRoutersAreHeard(t *testing.T) {
	want := Router{
		Addr: netip.MustParseAddr("fe80::ff:fe00:1"), MAC: frame.MAC{2, 0, 0, 0, 0, 1}, Managed: true, Default: true,
		OnLink:   []netip.Prefix{netip.MustParsePrefix("2001:db8:30::/64")},
		Prefixes: []netip.Prefix{netip.MustParsePrefix("2001:db8:30::/64"), netip.MustParsePrefix("2001:db8:31::/64")},
	}
	options := append(prefixOption(0x80, "2001:db8:30::/64"), prefixOption(0x40, "2001:db8:31::/64")...)
	got, ok := ParseRouter(advertisement(options...))
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); !ok || diff != "" {
		t.Error(ok, diff)
	}
	far := advertisement()
	far.Frame[frame.EthernetLen+7] = 64 // a router was between
	tagged := advertisement()
	tagged.VLAN = 20
	for name, in := range map[string]Received{
		"an option of no length": advertisement(3, 0, 64, 0), "far": far, "tagged": tagged, "short": {Frame: far.Frame[:40]},
	} {
		if _, ok := ParseRouter(in); ok && name != "an option of no length" {
			t.Errorf("%s is taken", name)
		}
	}
	if _, ok := ParseRouter(advertisement(append(prefixOption(0x80, "2001:db8::/64"), 3, 0, 0, 0, 0, 0, 0, 0)...)); ok {
		t.Error("an option of no length is taken")
	}
}

// Messages about a packet of ours are read, whichever protocol it is of.
func TestReportsAreRead(t *testing.T) {
	l := &Link{MAC: frame.MAC{2, 0, 0, 0, 0, 1}}
	for _, pair := range [][2]string{{"192.0.2.2", "192.0.2.9"}, {"2001:db8::2", "2001:db8::9"}} {
		peer, ours := netip.MustParseAddr(pair[0]), netip.MustParseAddr(pair[1])
		asked := l.echo(ours, peer, frame.MAC{}, 1400, 7, 0)
		answer := l.echo(peer, ours, frame.MAC{}, 1400, 7, 0)
		kind := frame.EthernetLen + frame.IPv4Len
		if peer.Is6() {
			kind = frame.EthernetLen + frame.IPv6Len
			answer[kind] = echoReply6
		} else {
			answer[kind] = echoReply
		}
		if r, ok := parseReport(Received{Frame: answer}, ours); !ok || r.peer != peer || r.echoed != 1400 || r.id != 7 {
			t.Errorf("%s: %v %+v", peer, ok, r)
		}
		if _, ok := parseReport(Received{Frame: asked}, ours); ok {
			t.Errorf("%s: the question is taken for an answer", peer)
		}
		for n := range answer {
			parseReport(Received{Frame: answer[:n]}, ours)
		}
	}
	peer, ours := netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("2001:db8::9")
	inner := l.echo(ours, peer, frame.MAC{}, 1400, 7, 0)[frame.EthernetLen:][:200]
	router := netip.MustParseAddr("2001:db8::1")
	tooBig := l.icmp6(router, ours, frame.MAC{}, append([]byte{tooBig6, 0, 0, 0, 0, 0, 0x05, 0x14}, inner...))
	if r, ok := parseReport(Received{Frame: tooBig}, ours); !ok || r.peer != peer || r.told != 1300 {
		t.Errorf("%v %+v", ok, r)
	}
	udp := slices.Concat(inner[:40], []byte{0, 9, 0, 69, 0, 8, 0, 0})
	closed := l.icmp6(peer, ours, frame.MAC{}, append([]byte{unreachable6, portUnreachable6, 0, 0, 0, 0, 0, 0}, udp...))
	if r, ok := parseReport(Received{Frame: closed}, ours); !ok || r.peer != peer || r.closed != 69 {
		t.Errorf("%v %+v", ok, r)
	}
	tcp := slices.Clone(inner[:60])
	tcp[6], tcp[42], tcp[43] = protocolTCP, 0x1f, 0x90
	rejected := l.icmp6(router, ours, frame.MAC{}, append([]byte{unreachable6, portUnreachable6, 0, 0, 0, 0, 0, 0}, tcp...))
	if r, ok := parseReport(Received{Frame: rejected}, ours); !ok || r.why != Rejected || r.closed != 8080 || r.by != router {
		t.Errorf("%v %+v", ok, r)
	}
	for code, want := range map[[2]byte]Reason{
		{timeExceeded6, 0}: Looped, {timeExceeded6, 1}: 0, // 1: a fragment is missing
		{unreachable6, 0}: Unreachable, {unreachable6, 1}: Prohibited, {unreachable6, portUnreachable6}: 0,
	} {
		message := l.icmp6(router, ours, frame.MAC{}, slices.Concat(code[:], make([]byte, 6), inner))
		if r, _ := parseReport(Received{Frame: message}, ours); r.why != want || want != 0 && (r.by != router || r.peer != peer) {
			t.Errorf("%v: %+v", code, r)
		}
	}
}
