package frame

import (
	"testing"

	"golang.org/x/net/bpf"
)

func TestHeardFilter(t *testing.T) {
	heard, err := HeardFilter()
	if err != nil {
		t.Fatal(err)
	}
	neighbours, err := NeighbourFilter()
	if err != nil {
		t.Fatal(err)
	}
	target := [16]byte{0x20, 1, 0xd, 0xb8, 15: 2}
	answer := AppendARP(nil, macA, macB, ARP{Operation: ARPReply, SenderMAC: macA})
	advertised := AppendUnsolicited(nil, macA, target)
	tests := map[string]struct {
		program   []bpf.RawInstruction
		b         []byte
		extension map[bpf.Extension]uint32
		want      bool
	}{
		"broadcast":           {heard, answer, kind(packetBroadcast), true},
		"to us":               {heard, answer, kind(packetHost), true},
		"to a group":          {heard, answer, kind(packetMulticast), true},
		"for another host":    {heard, answer, kind(3), false},
		"own transmission":    {heard, answer, kind(4), false},
		"another VLAN":        {heard, answer, tag(packetBroadcast, 42, true), false},
		"priority tag":        {heard, answer, tag(packetBroadcast, 0xe000, true), true},
		"tag taken off":       {heard, answer, tag(packetBroadcast, 20, false), true},
		"advertisement":       {neighbours, advertised, kind(packetHost), true},
		"advertised, tag off": {neighbours, advertised, tag(packetHost, 20, false), true},
		"own advertisement":   {neighbours, advertised, kind(4), false},
		"solicitation":        {neighbours, AppendSolicitation(nil, macA, LinkLocal(macA), target), kind(packetMulticast), false},
		"cut":                 {neighbours, advertised[:30], kind(packetHost), false},
		"another IPv6 packet": {neighbours, set(20, protocolUDP)(AppendUnsolicited(nil, macA, target)), kind(packetHost), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := emulate(t, test.program, test.b, test.extension); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
