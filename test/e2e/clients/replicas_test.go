package clients_test

import (
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/test/e2e/clients"
	"github.com/tinkerbell/stack/test/e2e/lab"
)

// TestTwoRelays has every client granted an address with two relays on the VLAN, by one DISCOVER and one REQUEST: each
// is answered by both, with equal messages. One relay is killed when the OFFERs are there; the REQUEST is answered at
// once.
func TestTwoRelays(t *testing.T) {
	t.Parallel() // labs do not see each other
	for _, client := range append([]clients.Client{clients.Networkd4}, clients.All...) {
		for name, victim := range map[string]string{
			"both": "", "first killed": lab.DHCPRelay, "second killed": lab.SecondRelay,
		} {
			t.Run(client.Name+"/"+name, func(t *testing.T) {
				t.Parallel()
				if err := client.Missing(); err != nil {
					t.Skip(err)
				}
				testTwoRelays(t, client, victim)
			})
		}
	}
}

func testTwoRelays(t *testing.T, client clients.Client, victim string) {
	m := machines(1)[0]
	l := lab.ForTest(t, lab.Options{Machines: []lab.Machine{m}, Without: []string{lab.Hegel, lab.StackProxy}})
	if err := l.AddRelay(t.Context()); err != nil {
		t.Fatal(err)
	}
	host, err := l.AddHost(m.Name, m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	wire, _ := follow(t, l, client, host)
	asked := map[dhcpv4.MessageType]int{}
	answers := map[dhcpv4.MessageType][]clients.Seen{}
	next := func() clients.Seen {
		t.Helper()
		seen, err := wire.Next(t.Context(), 20*time.Second, func(s clients.Seen) bool {
			return s.Message != nil && s.Message.ClientHWAddr.String() == m.MAC.String()
		})
		if err != nil {
			t.Fatal(err)
		}
		if kind := seen.Message.MessageType(); seen.Out {
			asked[kind]++
		} else {
			checkReply(t, m, seen)
			answers[kind] = append(answers[kind], seen)
		}
		return seen
	}
	want := 2
	for len(answers[dhcpv4.MessageTypeAck]) < want {
		next()
		if victim != "" && len(answers[dhcpv4.MessageTypeOffer]) == 1 && want == 2 {
			want = 1
			if err := l.Kill(victim); err != nil {
				t.Fatal(err)
			}
		}
	}
	if asked[dhcpv4.MessageTypeDiscover] != 1 || asked[dhcpv4.MessageTypeRequest] != 1 {
		t.Errorf("the client asked %v, want one DISCOVER and one REQUEST", asked)
	}
	for kind, each := range answers {
		for _, other := range each[1:] {
			one, another := *each[0].Message, *other.Message
			one.GatewayIPAddr, another.GatewayIPAddr = nil, nil
			if string(one.ToBytes()) != string(another.ToBytes()) {
				t.Errorf("two %ss differ by more than giaddr: %s and %s", kind, each[0], other)
			}
		}
	}
}
