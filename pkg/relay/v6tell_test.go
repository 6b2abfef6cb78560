package relay

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/dhcp6"
)

// told6 is what a test compares of an event.
type told6 struct {
	Kind                               boot.Kind
	Outcome                            boot.Outcome
	Type                               uint8
	MAC                                [6]byte
	UUID                               [16]byte
	Arch, Secs                         uint16
	Lease                              uint32
	Client, Given, Relay, Server       [16]byte
	Vendor, User, File, Where, Dropped string
}

func eventOf6(e *boot.Event) told6 {
	return told6{
		Kind: e.Kind, Outcome: e.Outcome, Type: e.DHCP, MAC: e.MAC, UUID: e.UUID, Arch: e.Arch, Secs: e.Secs, Lease: e.Lease,
		Client: e.Client, Given: e.Given, Relay: e.Relay, Server: e.Endpoint,
		Vendor: string(e.Text(boot.VendorClass)), User: string(e.Text(boot.UserClass)), File: string(e.Text(boot.File)),
		Where: string(e.Text(boot.Where)), Dropped: string(e.Text(boot.Reason)),
	}
}

// firmware is the SOLICIT of a UEFI machine.
func firmware() dhcp6.Message {
	uuid := append([]byte{0, 4}, "0123456789abcdef"...)
	m := dhcp6.Append(dhcp6.Message{byte(dhcp6.Solicit), 0, 0, 9}, dhcp6.OptionClientID, uuid)
	m = dhcp6.Append(m, dhcp6.OptionElapsedTime, []byte{1, 0x90})
	m = dhcp6.Append(m, dhcp6.OptionClientArch, []byte{0, 7})
	m = dhcp6.Append(m, dhcp6.OptionUserClass, append([]byte{0, 4}, "iPXE"...))
	return dhcp6.Append(m, dhcp6.OptionVendorClass, append([]byte{0, 0, 1, 0x57, 0, 9}, "PXEClient"...))
}

// TestTellsOfTransactions: what a machine's message and the answer to it say, and what became of them.
func TestTellsOfTransactions(t *testing.T) {
	var got []told6
	var took time.Duration
	b := newBench6(t, func(c *Config) {
		c.Event = func(e *boot.Event) {
			if !e.V6 || e.XID != 9 {
				t.Errorf("got version 6 %v, transaction %x", e.V6, e.XID)
			}
			got, took = append(got, eventOf6(e)), e.Took
		}
	})
	tell := func(m dhcp6.Message, a arrival) (dhcp6.Message, Drop) {
		wrapped, drop := b.hear(m, &a)
		tellArrived(b.worker, m, &a, b.targets, b.now(), drop)
		return wrapped, drop
	}
	machine := told6{
		Kind: boot.DHCPRequest, Type: 1, MAC: clientMAC, UUID: [16]byte([]byte("0123456789abcdef")), Arch: 7, Secs: 4,
		Client: clientIP, Server: serverIP.As16(), Vendor: "PXEClient", User: "iPXE", Where: "macvlan0",
	}
	request, drop := tell(firmware(), b.heard)
	if drop != None {
		t.Fatal(drop)
	}
	want := []told6{machine}

	given := netip.MustParseAddr("2001:db8:1::50").As16()
	address := append([]byte{0, 3, 0, 40}, make([]byte, 12)...)
	address = append(append(append(address, 0, 5, 0, 24), given[:]...), 0, 0, 0, 0, 0, 0, 14, 16)
	address = dhcp6.Append(address, dhcp6.OptionBootFileURL, []byte("http://boot/efi"))
	reply, later := answered(request, dhcp6.Reply, address...), b.now()+int64(7*time.Millisecond)
	from := netip.AddrPortFrom(serverIP, 547)
	o, drop := reply6(b.worker, reply, serverIP, b.targets, later)
	tellBack(b.worker, reply, &o, from, later, drop)
	answer := told6{
		Kind: boot.DHCPReply, Type: 7, MAC: clientMAC, UUID: machine.UUID, Lease: 3600, Client: clientIP, Given: given,
		Server: serverIP.As16(), File: "http://boot/efi", Where: "macvlan0",
	}
	want = append(want, answer)
	if took < 7*time.Millisecond || took > time.Minute {
		t.Errorf("the answer took %v", took)
	}

	// An agent's, which is not trusted; and the answer to a machine behind one that is.
	agent := arrival{source: peer{strangerIP, 547}, link: b.heard.link}
	mac := dhcp6.AppendClientLinkAddr(nil, clientMAC)
	relayed := around(dhcp6.RelayForward, 0, agentLink, clientIP, firmware(), mac...)
	if _, drop := tell(relayed, agent); drop != UntrustedRelay {
		t.Fatal(drop)
	}
	dropped := machine
	dropped.Outcome, dropped.Relay, dropped.Dropped = boot.Dropped, strangerIP, "untrusted-relay"
	agent.source.ip = agentIP
	request, drop = tell(relayed, agent)
	if drop != None {
		t.Fatal(drop)
	}
	passed := machine
	passed.Relay = agentIP
	reply = answered(request, dhcp6.Reply, address...)
	o, drop = reply6(b.worker, reply, serverIP, b.targets, b.now())
	tellBack(b.worker, reply, &o, from, b.now(), drop)
	behind := answer
	behind.Relay = agentIP
	want = append(want, dropped, passed, behind)

	reply[33]++ // the peer address: nobody asked from there
	o, drop = reply6(b.worker, reply, serverIP, b.targets, b.now())
	tellBack(b.worker, reply, &o, from, b.now(), drop)
	stray := behind
	stray.Outcome, stray.MAC, stray.Where, stray.Dropped = boot.Dropped, [6]byte{}, unicastLabel, "unsolicited"
	stray.Relay[15]++
	if diff := cmp.Diff(append(want, stray), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// FuzzDescribe is a message of any bytes that a machine or a server may have sent.
func FuzzDescribe(f *testing.F) {
	f.Add([]byte(firmware()))
	f.Add([]byte(message6(dhcp6.Reply, 0, 3, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)))
	f.Add([]byte(message6(dhcp6.Solicit, 0, 15, 0, 2, 255, 255, 0, 16, 0, 6, 0, 0, 0, 1, 255, 255)))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := dhcp6.Message(b)
		if m.Check(dhcp6.HopLimit) != dhcp6.OK {
			return
		}
		client, _ := m.Innermost()
		var e boot.Event
		texts := (*v6)(nil).describeEvent(&e, client)
		if len(texts.vendor)+len(texts.user)+len(texts.file) > len(b) || e.DHCP != client[0] {
			t.Fatal("more was read than is there")
		}
	})
}
