package relay

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// TestWhatServersAnswer: to which messages a server's silence says something.
func TestWhatServersAnswer(t *testing.T) {
	for name, test := range map[string]struct {
		m    dhcp.Message
		want bool
	}{
		"a DISCOVER":              {raw(dhcp.Discover, "\xff"), true},
		"a REBIND":                {raw(dhcp.Request, "\xff"), true},
		"an INFORM":               {raw(dhcp.Inform, "\xff"), true},
		"a RELEASE":               {raw(dhcp.Release, "\xff"), false},
		"a DECLINE":               {raw(dhcp.Decline, "\xff"), false},
		"BOOTP, without a cookie": {message(dhcp.OpRequest, 1)[:236], true},
	} {
		if answerable(test.m.Type()) != test.want {
			t.Errorf("%s: want %v", name, test.want)
		}
	}
}

// TestNothingWaitsForRelease: no server answers it (RFC 2131 section 4.4.4), so that a relay that ends need not wait.
func TestNothingWaitsForRelease(t *testing.T) {
	b := newBench(t, nil)
	for _, kind := range []dhcp.Type{dhcp.Release, dhcp.Decline} {
		if _, drop := b.hear(raw(kind, "\xff")); drop != None || b.pending.Len() != 0 {
			t.Errorf("%v: got %v, %d are remembered", kind, drop, b.pending.Len())
		}
	}
}

// TestRackAtDefaults: 200 machines that boot at a time, each by its ROM and by iPXE, lose nothing by the default
// limits.
func TestRackAtDefaults(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.ClientRate, c.TotalRate = 0, 0
		c.Servers = []string{"10.244.0.11", "10.244.0.12"}
	})
	at := int64(1e9)
	for step, kind := range []dhcp.Type{dhcp.Discover, dhcp.Request, dhcp.Discover, dhcp.Request} {
		for n := range 200 {
			at += 37e6 // 30 s for all
			m := raw(kind, "\xff")
			binary.BigEndian.PutUint32(m[4:], uint32(step*200+n))
			m[33] = byte(n)
			a := b.heard
			got, drop := b.worker.request4(m, &a, b.targets, at)
			if drop != None {
				t.Fatalf("machine %d, %v: got %v", n, kind, drop)
			}
			got[0], got[242] = byte(dhcp.OpReply), byte(map[dhcp.Type]dhcp.Type{dhcp.Discover: dhcp.Offer, dhcp.Request: dhcp.Ack}[kind])
			copy(got[16:], yiaddr[:])
			for _, from := range []byte{11, 12} {
				if _, _, drop := reply4(b.worker, got, netip.AddrFrom4([4]byte{10, 244, 0, from}), b.targets, at); drop != None {
					t.Fatal(drop)
				}
			}
		}
	}
}
