package link

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/tinkerbell/stack/pkg/frame"
)

// Messages about a packet of ours are read, whichever protocol it is of.
func TestReportsAreRead(t *testing.T) {
	l := &Link{MAC: frame.MAC{2, 0, 0, 0, 0, 1}}
	const at = frame.EthernetLen + frame.IPv4Len
	router, peer := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	ours := netip.MustParseAddr("192.0.2.9")
	asked := l.echo(ours, peer, frame.MAC{}, 1400, 7, 0)
	answer := l.echo(peer, ours, frame.MAC{}, 1400, 7, 0)
	answer[at] = echoReply
	if r, ok := parseReport(Received{Frame: answer}, ours); !ok || r.peer != peer || r.echoed != 1400 || r.id != 7 {
		t.Errorf("%v %+v", ok, r)
	}
	if _, ok := parseReport(Received{Frame: asked}, ours); ok {
		t.Error("the question is taken for an answer")
	}
	for n := range answer {
		parseReport(Received{Frame: answer[:n]}, ours)
	}
	// told is a message of a router's about a packet of ours.
	told := func(kind, code byte, rest [4]byte, inner []byte) Received {
		b := l.echo(router, ours, frame.MAC{}, frame.IPv4Len+icmpLen+len(inner), 0, 0)
		b[at], b[at+1] = kind, code
		copy(b[at+4:], rest[:])
		copy(b[at+icmpLen:], inner)
		return Received{Frame: b}
	}
	packet := asked[frame.EthernetLen:][:48]
	tooBig := told(unreachable, fragmentationNeeded, [4]byte{0, 0, 0x05, 0x14}, packet)
	if r, ok := parseReport(tooBig, ours); !ok || r.peer != peer || r.told != 1300 || r.by != router {
		t.Errorf("%v %+v", ok, r)
	}
	udp, tcp := slices.Clone(packet), slices.Clone(packet)
	udp[9], udp[22], udp[23] = 17, 0, 69
	if r, ok := parseReport(told(unreachable, portUnreachable, [4]byte{}, udp), ours); !ok || r.closed != 69 || r.why != 0 {
		t.Errorf("%v %+v", ok, r)
	}
	tcp[9], tcp[22], tcp[23] = protocolTCP, 0x1f, 0x90
	if r, ok := parseReport(told(unreachable, portUnreachable, [4]byte{}, tcp), ours); !ok || r.why != Rejected || r.closed != 8080 {
		t.Errorf("%v %+v", ok, r)
	}
	for code, want := range map[[2]byte]Reason{
		{timeExceeded, 0}: Looped, {timeExceeded, 1}: 0, // 1: a fragment is missing
		{unreachable, 0}: Unreachable, {unreachable, 13}: Prohibited,
	} {
		r, _ := parseReport(told(code[0], code[1], [4]byte{}, packet), ours)
		if r.why != want || want != 0 && (r.by != router || r.peer != peer) {
			t.Errorf("%v: %+v", code, r)
		}
	}
}
