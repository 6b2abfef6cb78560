package frame

import (
	"fmt"

	"golang.org/x/net/bpf"
)

// HeardFilter selects, in the kernel, what is sent to this host, to a group or to everybody: no own transmissions, no
// other hosts' frames, and none of another VLAN whose tag the network card took off.
func HeardFilter() ([]bpf.RawInstruction, error) { return heardFilter(nil) }

// NeighbourFilter selects neighbour advertisements (RFC 4861 section 4.4) among what HeardFilter does.
func NeighbourFilter() ([]bpf.RawInstruction, error) {
	return heardFilter([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 20, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: protocolICMPv6, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: EthernetLen + IPv6Len, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: neighbourAdvertisement, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	})
}

func heardFilter(more []bpf.Instruction) ([]bpf.RawInstruction, error) {
	program := untagged(
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpLessOrEqual, Val: packetMulticast, SkipTrue: 1}, // to this host, everybody, a group
		bpf.RetConstant{Val: 0},
	)
	raw, err := bpf.Assemble(append(append(program, more...), bpf.RetConstant{Val: accept}))
	if err != nil {
		return nil, fmt.Errorf("failed to assemble filter of what is heard: %w", err)
	}
	return raw, nil
}
