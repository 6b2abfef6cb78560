package wire

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/bpf"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/probe"
)

// receiver is whom a message is for: the station, and for ARP the address that had asked.
type receiver struct {
	mac frame.MAC
	ip  netip.Addr
}

// parse reads what a frame says, and of which address. Whether a claim answers a question of ours tells judge.
func parse(six bool, b []byte) (about netip.Addr, heard probe.Heard, to receiver, ok bool) {
	if six {
		if target, mac, ok := frame.ParseProbe6(b); ok {
			return netip.AddrFrom16(target), probe.Heard{Kind: probe.Probing, MAC: mac}, receiver{}, true
		}
		a, mac, ok := frame.ParseNeighbourAdvertisement(b)
		kind := probe.Claim
		if a.Solicited {
			kind = probe.Answer
		}
		return netip.AddrFrom16(a.Target), probe.Heard{Kind: kind, MAC: a.MAC}, receiver{mac: mac}, ok
	}
	m, mac, ok := frame.ParseARP(b)
	to = receiver{mac: mac, ip: netip.AddrFrom4(m.TargetIP)}
	switch sender := netip.AddrFrom4(m.SenderIP); {
	case sender.IsUnspecified() && m.Operation == frame.ARPRequest:
		return to.ip, probe.Heard{Kind: probe.Probing, MAC: m.SenderMAC}, to, ok
	case m.Operation == frame.ARPReply:
		return sender, probe.Heard{Kind: probe.Answer, MAC: m.SenderMAC}, to, ok
	default:
		return sender, probe.Heard{Kind: probe.Claim, MAC: m.SenderMAC}, to, ok
	}
}

// judge takes for an answer what is sent to this station alone, since the port's question was asked from its source.
// An announcement to all says nothing of the time at which the question was heard, and the answer to a probe nothing of
// that of the question: two answers to one question mean two owners at one time.
func (p *Port) judge(heard probe.Heard, to receiver, mac frame.MAC) probe.Heard {
	asked := p.address.Is6() || to.ip == p.source
	if heard.Kind == probe.Answer && (to.mac != mac || !asked) {
		heard.Kind = probe.Claim
	}
	return heard
}

// maxSelected is for how many addresses the kernel selects messages; beyond, it passes on all. A filter has 4,096
// instructions at most.
const maxSelected = 1000

// filter selects messages of addresses: who has one, and who is about to claim it.
func filter(six bool, addresses []netip.Addr) ([]bpf.RawInstruction, error) {
	accept, refuse := bpf.RetConstant{Val: maxFrame}, bpf.RetConstant{}
	only := func(offset uint32, size int, value uint32) []bpf.Instruction {
		return []bpf.Instruction{
			bpf.LoadAbsolute{Off: offset, Size: size}, bpf.JumpIf{Cond: bpf.JumpEqual, Val: value, SkipTrue: 1}, refuse,
		}
	}
	among := func(offset uint32) []bpf.Instruction {
		if len(addresses) > maxSelected {
			return []bpf.Instruction{accept}
		}
		some := []bpf.Instruction{bpf.LoadAbsolute{Off: offset, Size: 4}}
		for _, a := range addresses {
			b := a.AsSlice()
			last := binary.BigEndian.Uint32(b[len(b)-4:])
			some = append(some, bpf.JumpIf{Cond: bpf.JumpEqual, Val: last, SkipFalse: 1}, accept)
		}
		return some
	}
	var program []bpf.Instruction
	if six {
		const icmpv6, solicitation, advertisement = 58, 135, 136
		const icmp = frame.EthernetLen + frame.IPv6Len
		program = only(frame.EthernetLen+6, 1, icmpv6)
		fromNowhere := only(frame.EthernetLen+8, 4, 0)
		program = append(program, bpf.LoadAbsolute{Off: icmp, Size: 1},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: advertisement, SkipTrue: uint8(2 + len(fromNowhere))},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: solicitation, SkipTrue: 1}, refuse)
		program = append(program, fromNowhere...)
		program = append(program, among(icmp+8+12)...)
	} else {
		const sender, target = frame.EthernetLen + 14, frame.EthernetLen + 24
		program = among(sender)
		program = append(program, only(sender, 4, 0)...)
		program = append(program, among(target)...)
	}
	return bpf.Assemble(append(program, refuse))
}
