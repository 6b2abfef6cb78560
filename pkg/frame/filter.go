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

// Filter selects, in the kernel, the frames that a broadcast listener is to read: UDP to the port, in IPv4,
// received as broadcast or multicast, or sent to the limited broadcast address by an Ethernet unicast.
//
// It leaves out what an ETH_P_IP packet socket would see besides: frames for other hosts and the machine's own
// transmissions (so nothing is read back), frames of other VLANs whose tag the network card took off, later
// fragments, and datagrams to an address of this host, which an ordinary socket receives.
func Filter(port uint16) ([]bpf.RawInstruction, error) {
	const (
		accept     = 0xffff // bytes to keep
		vlanIDMask = 0x0fff
	)
	// Jumps count instructions to skip; "reject" is the last one.
	program := []bpf.Instruction{
		/*  0 */ bpf.LoadExtension{Num: bpf.ExtVLANTag},
		/*  1 */ bpf.ALUOpConstant{Op: bpf.ALUOpAnd, Val: vlanIDMask},
		/*  2 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 16}, // a VLAN, not a mere priority tag
		/*  3 */ bpf.LoadAbsolute{Off: 12, Size: 2},
		/*  4 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: etherTypeIPv4, SkipTrue: 14},
		/*  5 */ bpf.LoadAbsolute{Off: 23, Size: 1},
		/*  6 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protocolUDP, SkipTrue: 12},
		/*  7 */ bpf.LoadAbsolute{Off: 20, Size: 2},
		/*  8 */ bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: maskOffset, SkipTrue: 10},
		/*  9 */ bpf.LoadMemShift{Off: EthernetLen},
		/* 10 */ bpf.LoadIndirect{Off: EthernetLen + 2, Size: 2},
		/* 11 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(port), SkipTrue: 7},
		/* 12 */ bpf.LoadExtension{Num: bpf.ExtType},
		/* 13 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetBroadcast, SkipTrue: 4},
		/* 14 */ bpf.JumpIf{Cond: bpf.JumpEqual, Val: packetMulticast, SkipTrue: 3},
		/* 15 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: packetHost, SkipTrue: 3},
		/* 16 */ bpf.LoadAbsolute{Off: 30, Size: 4},
		/* 17 */ bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0xffffffff, SkipTrue: 1},
		/* 18 */ bpf.RetConstant{Val: accept},
		/* 19 */ bpf.RetConstant{Val: 0},
	}
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
