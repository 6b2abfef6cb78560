package relay

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
)

// message makes a DHCP message as bytes: op, type and options as they stand behind the type.
func message(op dhcp.Op, kind byte, options ...byte) dhcp.Message {
	m := make([]byte, dhcp.MinLen, mmsg.SlotLen)
	m[0], m[1], m[2] = byte(op), 1, 6
	binary.BigEndian.PutUint32(m[4:], 0x12345678)
	copy(m[28:], []byte{2, 0, 0, 0, 0, 0x50})
	m = append(m, 0x63, 0x82, 0x53, 0x63, 53, 1, kind)
	return append(append(m, options...), 255)
}

var (
	yiaddr = [4]byte{192, 0, 2, 50}
	ciaddr = [4]byte{192, 0, 2, 60}
)

// replyCase is one case of the matrix: broadcast flag x yiaddr x ciaddr x type x htype and hlen.
type replyCase struct {
	name string
	m    dhcp.Message
	want destination
}

func replyMatrix() (cases []replyCase) {
	type hardware struct {
		htype, hlen byte
		unicast     bool
	}
	all := []hardware{{1, 6, true}, {1, 0, false}, {1, 16, false}, {32, 0, false}, {32, 6, false}, {6, 6, false}}
	for _, hw := range all {
		for _, kind := range []dhcp.Type{dhcp.BOOTP, dhcp.Offer, dhcp.Ack, dhcp.Nak} {
			for flags := range 8 {
				broadcast, hasYiaddr, hasCiaddr := flags&1 != 0, flags&2 != 0, flags&4 != 0
				m := message(dhcp.OpReply, byte(kind))
				m[1], m[2] = hw.htype, hw.hlen
				if kind == dhcp.BOOTP {
					m[240] = 0 // instead of option 53: a pad, and an unknown option
				}
				if broadcast {
					m[10] = 0x80
				}
				if hasYiaddr {
					copy(m[16:], yiaddr[:])
				}
				if hasCiaddr {
					copy(m[12:], ciaddr[:])
				}
				want := destination{mac: frame.MAC{2, 0, 0, 0, 0, 0x50}, ip: limitedBroadcast}
				switch {
				case broadcast || kind == dhcp.Nak || !hw.unicast: // traps 6, 10, 12
					want.mac = frame.Broadcast
				case hasCiaddr: // trap 9
					want.ip = ciaddr
				case hasYiaddr: // trap 7
					want.ip = yiaddr
				} // trap 8: neither
				name := fmt.Sprintf("%v htype=%d hlen=%d B=%d yiaddr=%d ciaddr=%d",
					kind, hw.htype, hw.hlen, bit(broadcast), bit(hasYiaddr), bit(hasCiaddr))
				cases = append(cases, replyCase{name, m, want})
			}
		}
	}
	return cases
}

// TestReplyMatrix holds the addressing to the rules.
func TestReplyMatrix(t *testing.T) {
	for _, c := range replyMatrix() {
		if got := address(c.m, false); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
		if got := address(c.m, true); got != (destination{mac: frame.Broadcast, ip: limitedBroadcast}) {
			t.Errorf("%s, always broadcast: got %+v", c.name, got)
		}
	}
}

var update = flag.Bool("update", false, "write the golden files anew")

// TestReplyMatrixGoldenFrames compares the whole frames of the matrix, headers and message, with those of record. Read
// the difference before you run it with -update.
func TestReplyMatrixGoldenFrames(t *testing.T) {
	const golden = "testdata/replies.golden"
	var got bytes.Buffer
	for _, c := range replyMatrix() {
		whole := append(make([]byte, frame.HeaderLen), dhcp.Pad(c.m)...)
		putReply(whole, testMAC, [4]byte{192, 0, 2, 2}, false)
		// The message is the same but for the fields in the name; its sum is in the UDP header.
		fmt.Fprintf(&got, "%-48s %x %x\n", c.name, whole[:frame.HeaderLen], whole[frame.HeaderLen:frame.HeaderLen+28])
	}
	if *update {
		if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got.String(), "\n")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReplyToImpossibleChaddr(t *testing.T) {
	for _, chaddr := range [][]byte{{0, 0, 0, 0, 0, 0}, {1, 0, 0x5e, 0, 0, 1}, {255, 255, 255, 255, 255, 255}} {
		m := message(dhcp.OpReply, byte(dhcp.Offer))
		copy(m[28:], chaddr)
		copy(m[16:], yiaddr[:])
		if got := address(m, false); got.mac != frame.Broadcast || got.ip != limitedBroadcast {
			t.Errorf("%x: got %+v, want a broadcast", chaddr, got)
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add([]byte(message(dhcp.OpReply, byte(dhcp.Offer))))
	f.Add([]byte(message(dhcp.OpReply, byte(dhcp.Nak))))
	f.Add([]byte(message(dhcp.OpReply, byte(dhcp.Ack)))[:240])
	f.Fuzz(func(t *testing.T, b []byte) {
		m := dhcp.Message(b)
		if m.Check() != dhcp.OK {
			return
		}
		to := address(m, false)
		if to.mac.IsGroup() && to.mac != frame.Broadcast {
			t.Fatalf("to the group %x", to.mac)
		}
		if to.ip == ([4]byte{}) {
			t.Fatal("to 0.0.0.0")
		}
		if to.mac == frame.Broadcast && to.ip != limitedBroadcast {
			t.Fatal("an Ethernet broadcast of an IP unicast")
		}
	})
}
