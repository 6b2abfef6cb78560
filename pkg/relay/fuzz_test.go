package relay

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
)

// FuzzPolicy is a request and a reply of any bytes: never a panic, and of a request only what may change does.
func FuzzPolicy(f *testing.F) {
	f.Add([]byte(message(dhcp.OpRequest, byte(dhcp.Discover))), false)
	f.Add([]byte(message(dhcp.OpRequest, byte(dhcp.Request), 82, 3, 1, 1, 'x')), true)
	f.Add([]byte(withGiaddr(message(dhcp.OpRequest, byte(dhcp.Inform)), theirGiaddr)), true)
	f.Add([]byte(message(dhcp.OpReply, byte(dhcp.Ack), 82, 3, 1, 1, 'x')), false)
	f.Add([]byte(message(dhcp.OpRequest, byte(dhcp.Discover), 82, 5, 5, 3, 1, 2, 3)), true)
	f.Add([]byte(withGiaddr(message(dhcp.OpRequest, byte(dhcp.Discover), 82, 5, 5, 3, 1, 2, 3, 0, 82, 2, 1, 0), theirGiaddr)), true)
	bench := newBench(f, func(c *Config) { c.TracePackets, c.Pending = -1, 16 })
	f.Fuzz(func(t *testing.T, b []byte, viaUnicast bool) {
		if len(b) > mmsg.Received {
			return
		}
		slot := make([]byte, len(b), mmsg.SlotLen)
		copy(slot, b)
		a := bench.heard
		if viaUnicast {
			a = arrival{listener: unicast, source: peer{wide(theirGiaddr), 67}}
		}
		got, drop := bench.worker.request4(slot, &a, bench.targets, 0)
		if drop != None {
			return
		}
		if len(got) < 300 || !bytes.Equal(got[4:24], b[4:24]) || !bytes.Equal(got[28:236], b[28:236]) {
			t.Fatal("a byte changed that may not")
		}
		if got.Giaddr() == dhcp.Message(b).Giaddr() || !viaUnicast || dhcp.Message(b).Giaddr() == [4]byte{} {
			// A link that no host can be on is taken out of a trusted agent's option 82.
			padded := dhcp.Pad(append(make(dhcp.Message, 0, mmsg.SlotLen), b...))
			if !bytes.Equal(got[236:max(len(b), 236)], b[236:]) && !nowhere(padded) {
				t.Fatal("an option changed that may not")
			}
		} else if link, found := linkOf(got); !found || !isHost(link) {
			t.Fatal("giaddr is replaced, and the link is lost")
		}
		if got.Hops() != b[3]+1 {
			t.Fatal("hops are not counted")
		}
		if !answerable(got.Type()) {
			return
		}
		got[0] = byte(dhcp.OpReply)
		if _, _, drop := reply4(bench.worker, got, bench.targets.All[0].Addr.Addr(), bench.targets, 0); drop != None && drop != BadAddress {
			t.Fatalf("the answer is dropped: %v", drop)
		}
	})
}

// linkOf is the link selection in a request.
func linkOf(m dhcp.Message) (link [4]byte, found bool) {
	for option82 := range m.Options82 {
		if value, ok := dhcp.Sub(option82, dhcp.SubLinkSelection); ok && len(value) == 4 {
			return [4]byte(value), true
		}
	}
	return link, false
}

// FuzzReply is a reply of any bytes, asked for or not, to a request that had option 82 of its own, ours, or none.
func FuzzReply(f *testing.F) {
	f.Add([]byte(message(dhcp.OpReply, byte(dhcp.Offer), 82, 4, 1, 2, 'm', 'e')), byte(3), byte(4))
	f.Add([]byte(message(dhcp.OpReply, byte(dhcp.Ack), 82, 3, 1, 1, 'x', 82, 4, 1, 2, 'm', 'e')), byte(1), byte(4))
	f.Add([]byte(message(dhcp.OpReply, byte(dhcp.Nak), 82, 7, 9, 5, 0, 0, 0x7e, 0xd9, 0)), byte(4), byte(0))
	f.Add([]byte(message(dhcp.OpReply, byte(dhcp.Ack)))[:238], byte(9), byte(200))
	bench := newBench(f, func(c *Config) {
		c.TracePackets, c.Pending = -1, 16
		c.TokenKey = []byte("0123456789abcdef")
	})
	f.Fuzz(func(t *testing.T, b []byte, flags, agent byte) {
		if len(b) > mmsg.Received || len(b) > 0 && b[0] != byte(dhcp.OpReply) {
			return
		}
		slot := make([]byte, frame.HeaderLen+len(b), mmsg.SlotLen)
		copy(slot[frame.HeaderLen:], b)
		m := dhcp.Message(slot[frame.HeaderLen:])
		if m.Check() == dhcp.OK && flags&4 == 0 {
			o := origin{origin4: origin4{added: dhcp.Subs(agent), sole: flags&2 != 0}}
			if flags&8 != 0 {
				o.listener = unicast
			}
			bench.pending.Remember(keyOf(m), o, 0)
		}
		got, o, drop := reply4(bench.worker, m, netip.AddrFrom4([4]byte{}), bench.targets, 0)
		if drop != None {
			return
		}
		if len(got) < dhcp.PaddedLen || len(got) > max(len(b), dhcp.PaddedLen) {
			t.Fatalf("got %d bytes of %d", len(got), len(b))
		}
		if !bytes.Equal(got[:24], b[:24]) || !bytes.Equal(got[28:236], b[28:236]) {
			t.Fatal("a fixed field changed")
		}
		if o.added == 0 && !bytes.Equal(got[236:len(b)], b[236:]) {
			t.Fatal("an option changed though none was ours")
		}
		if o.added != 0 && o.sole && got.HasOption82() {
			t.Fatal("our option 82 is left")
		}
		putReply(slot[:frame.HeaderLen+len(got)], testMAC, ourGiaddr, false)
		if _, fault := frame.Parse(slot[:frame.HeaderLen+len(got)], frame.Verify); fault != frame.OK {
			t.Fatalf("the frame is bad: %v", fault)
		}
	})
}
