package frame

import (
	"fmt"

	"golang.org/x/net/bpf"
)

// Packet types of sockaddr_ll, as the kernel marks a frame.
const (
	packetHost      = 0
	packetBroadcast = 1
	packetMulticast = 2
)

const accept = 0xffff // bytes of a frame that a filter keeps

// untagged is the head of every filter: it rejects frames of other VLANs whose tag the network card took off, and has
// the rest of the filter judge the others. A tag without a VLAN's id is a mere priority (IEEE 802.1Q section 6.9).
//
// Whether there is a tag has to be asked first: Linux 5.0 to 6.1 leave the id of the VLAN that a frame came by in the
// frame's metadata after a VLAN interface has taken the tag off, and only note that none is present any more.
func untagged(rest ...bpf.Instruction) []bpf.Instruction {
	const vlanIDMask = 0x0fff
	return append([]bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtVLANTagPresent},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 4},
		bpf.LoadExtension{Num: bpf.ExtVLANTag},
		bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: vlanIDMask},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}, rest...)
}

// Filter selects, in the kernel, the frames that a broadcast listener is to read: UDP to the port, in IPv4,
// received as broadcast or multicast, or sent to the limited broadcast address by an Ethernet unicast.
//
// It leaves out what an ETH_P_IP packet socket would see besides: frames for other hosts and the machine's own
// transmissions (so nothing is read back), frames of other VLANs whose tag the network card took off, later
// fragments, and datagrams to an address of this host, which an ordinary socket receives.
func Filter(port uint16) ([]bpf.RawInstruction, error) {
	// Jumps count instructions to skip; "reject" is the last one.
	program := untagged(
		/*  0 */ bpf.LoadAbsolute{Off: 12, Size: 2},
		/*  1 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherTypeIPv4, SkipTrue: 14},
		/*  2 */ bpf.LoadAbsolute{Off: 23, Size: 1},
		/*  3 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolUDP, SkipTrue: 12},
		/*  4 */ bpf.LoadAbsolute{Off: 20, Size: 2},
		/*  5 */ bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: maskOffset, SkipTrue: 10},
		/*  6 */ bpf.LoadMemShift{Off: EthernetLen},
		/*  7 */ bpf.LoadIndirect{Off: EthernetLen + 2, Size: 2},
		/*  8 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(port), SkipTrue: 7},
		/*  9 */ bpf.LoadExtension{Num: bpf.ExtType},
		/* 10 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetBroadcast, SkipTrue: 4},
		/* 11 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetMulticast, SkipTrue: 3},
		/* 12 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: packetHost, SkipTrue: 3},
		/* 13 */ bpf.LoadAbsolute{Off: 30, Size: 4},
		/* 14 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0xffffffff, SkipTrue: 1},
		/* 15 */ bpf.RetConstant{Val: accept},
		/* 16 */ bpf.RetConstant{Val: 0},
	)
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("failed to assemble listener filter: %w", err)
	}
	return raw, nil
}

// UnicastFilter keeps a UDP socket on the wildcard address from waking for what listeners hear anyway: it
// rejects datagrams to the limited broadcast address.
func UnicastFilter() ([]bpf.RawInstruction, error) {
	const networkHeader = 0xfff00000 // SKF_NET_OFF: offsets count from the IP header (linux/filter.h)
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: networkHeader + 16, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 0xffffffff, SkipTrue: 1},
		bpf.RetConstant{Val: 0xffff},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return nil, fmt.Errorf("failed to assemble unicast filter: %w", err)
	}
	return raw, nil
}
