package frame

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var (
	macA = MAC{2, 0, 0, 0, 0, 0xa}
	macB = MAC{2, 0, 0, 0, 0, 0xb}
)

func fromHex(t *testing.T, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// The frames as tcpdump -xx shows those of arping (gratuitous request, gratuitous reply, RFC 5227 probe).
func TestARP(t *testing.T) {
	vip := [4]byte{192, 0, 2, 10}
	tests := map[string]struct {
		message ARP
		to      MAC
		want    string
	}{
		"gratuitous request": {
			ARP{Operation: ARPRequest, SenderMAC: macA, SenderIP: vip, TargetIP: vip}, Broadcast,
			"ffffffffffff 02000000000a 0806 0001 0800 06 04 0001 02000000000a c000020a 000000000000 c000020a",
		},
		"gratuitous reply": {
			ARP{Operation: ARPReply, SenderMAC: macA, SenderIP: vip, TargetMAC: macA, TargetIP: vip}, Broadcast,
			"ffffffffffff 02000000000a 0806 0001 0800 06 04 0002 02000000000a c000020a 02000000000a c000020a",
		},
		"probe": {
			ARP{Operation: ARPRequest, SenderMAC: macA, TargetIP: vip}, Broadcast,
			"ffffffffffff 02000000000a 0806 0001 0800 06 04 0001 02000000000a 00000000 000000000000 c000020a",
		},
		"answer": {
			ARP{Operation: ARPReply, SenderMAC: macA, SenderIP: vip, TargetMAC: macB}, macB,
			"02000000000b 02000000000a 0806 0001 0800 06 04 0002 02000000000a c000020a 02000000000b 00000000",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := AppendARP(nil, macA, test.to, test.message)
			if diff := cmp.Diff(fromHex(t, test.want), got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			message, to, ok := ParseARP(append(got, make([]byte, 18)...)) // as padded by the sender
			if !ok || message != test.message || to != test.to {
				t.Errorf("read as %+v to %x, %v", message, to, ok)
			}
		})
	}
}

func TestNeighbourDiscovery(t *testing.T) {
	vip := netip.MustParseAddr("2001:db8::10").As16()
	own := LinkLocal(macB)
	if got, want := netip.AddrFrom16(SolicitedNode(vip)).String(), "ff02::1:ff00:10"; got != want {
		t.Errorf("solicited-node group %s, want %s", got, want)
	}
	unsolicited := AppendUnsolicited(nil, macA, vip)
	want := fromHex(t, `333300000001 02000000000a 86dd 60000000 0020 3a ff
		20010db8000000000000000000000010 ff020000000000000000000000000001
		88 00 f903 20000000 20010db8000000000000000000000010 02 01 02000000000a`)
	if diff := cmp.Diff(want, unsolicited); diff != "" {
		t.Errorf("unsolicited advertisement (-want +got):\n%s", diff)
	}
	solicitation := AppendSolicitation(nil, macB, own, vip)
	want = fromHex(t, `3333ff000010 02000000000b 86dd 60000000 0020 3a ff
		fe80000000000000 000000fffe00000b ff02000000000000 00000001ff000010
		87 00 4c2f 00000000 20010db8000000000000000000000010 01 01 02000000000b`)
	if diff := cmp.Diff(want, solicitation); diff != "" {
		t.Errorf("solicitation (-want +got):\n%s", diff)
	}
	a, to, ok := ParseNeighbourAdvertisement(unsolicited)
	if !ok || a != (NeighbourAdvertisement{Target: vip, MAC: macA}) || to != (MAC{0x33, 0x33, 0, 0, 0, 1}) {
		t.Errorf("read as %+v to %x, %v", a, to, ok)
	}
	for i := range unsolicited[EthernetLen:] {
		damaged := append([]byte(nil), unsolicited...)
		damaged[EthernetLen+i] ^= 0x55
		if i > 3 { // version, class and flow label are not covered by the checksum
			if _, _, ok := ParseNeighbourAdvertisement(damaged); ok {
				t.Errorf("byte %d may be damaged", i)
			}
		}
	}
	if _, _, ok := ParseNeighbourAdvertisement(solicitation); ok {
		t.Error("a solicitation is read as an advertisement")
	}
}

func FuzzNeighbour(f *testing.F) {
	vip := netip.MustParseAddr("2001:db8::10").As16()
	f.Add(AppendUnsolicited(nil, macA, vip))
	f.Add(AppendSolicitation(nil, macA, LinkLocal(macA), vip))
	f.Add(AppendARP(nil, macA, macB, ARP{Operation: ARPReply}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, to, ok := ParseARP(b); ok {
			again, _, ok := ParseARP(AppendARP(nil, MAC(b[6:]), to, m))
			if !ok || again != m {
				t.Errorf("%+v became %+v", m, again)
			}
		}
		if a, _, ok := ParseNeighbourAdvertisement(b); ok && len(b) < neighbourLeast {
			t.Errorf("%+v in %d bytes", a, len(b))
		}
	})
}
