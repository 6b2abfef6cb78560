package relay

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// TestWhatServersOwe: of which clients a server's silence to a message says something.
func TestWhatServersOwe(t *testing.T) {
	tests := map[string]struct {
		m          dhcp.Message
		answerable bool
		want       server.Given
	}{
		"a DISCOVER":                     {raw(dhcp.Discover, "\xff"), true, server.Offer},
		"a REQUEST that names a server":  {raw(dhcp.Request, "\x36\x04\x0a\x09\x00\x0a\xff"), true, server.Nothing},
		"a REBIND, or INIT-REBOOT":       {raw(dhcp.Request, "\xff"), true, server.Lease},
		"an INFORM":                      {raw(dhcp.Inform, "\xff"), true, server.Nothing},
		"a RELEASE":                      {raw(dhcp.Release, "\xff"), false, server.Nothing},
		"a DECLINE":                      {raw(dhcp.Decline, "\xff"), false, server.Nothing},
		"BOOTP, without a cookie":        {message(dhcp.OpRequest, 1)[:236], true, server.Nothing},
		"LEASEQUERY of another agent":    {raw(10, "\xff"), true, server.Nothing},
		"a type that nobody knows as of": {raw(99, "\xff"), true, server.Nothing},
	}
	for name, test := range tests {
		kind := test.m.Type()
		if got := mustHaveGiven(test.m, kind); got != test.want || answerable(kind) != test.answerable {
			t.Errorf("%s: got %v, answerable %v, want %v, %v", name, got, answerable(kind), test.want, test.answerable)
		}
	}
}

// TestFirmwareIsAMachineOfItsOwn: the servers of boot files may know it, and not the system that it starts.
func TestFirmwareIsAMachineOfItsOwn(t *testing.T) {
	for class, want := range map[string]bool{
		"": false, "\x3c\x08MSFT 5.0": false, "\x3c\x20PXEClient:Arch:00007:UNDI:003016": true,
		"\x3c\x21HTTPClient:Arch:00016:UNDI:003001": true, "\x3c\x03PXE": false,
	} {
		b := newBench(t, nil)
		a := b.heard
		_, drop := b.worker.request4(raw(dhcp.Discover, class+"\xff"), &a, b.targets, b.now())
		if drop != None || a.firmware != want || (server.Machine(a.client, a.firmware) == a.client) == want {
			t.Errorf("%q: got %v, firmware %v", class, drop, a.firmware)
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
			if drop != None || a.waits {
				t.Fatalf("machine %d, %v: got %v, waits %v", n, kind, drop, a.waits)
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
