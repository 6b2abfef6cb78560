package main

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
)

// TestSmee382RoutersHelper: a router's helper asks, and gets its own answer back on the path it asked by.
func TestSmee382RoutersHelper(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "TRUSTED_RELAYS="+serverIP.String()+"/32", "AGENT_OPTIONS=link-selection")
	p.waitReady(t)
	router := l.listen(t, l.server, netip.AddrPortFrom(serverIP, 6767))
	helped := discover(t, dhcpv4.WithRelay(net.IP{203, 0, 113, 1}))
	send(t, router, helped.ToBytes(), netip.AddrPortFrom(podIP, 67))
	request, from := receive(t, l.smee)
	if giaddr := netip.AddrFrom4([4]byte(request[24:28])); giaddr != podIP {
		t.Errorf("the server would answer %v, past the relay", giaddr)
	}
	parsed, err := dhcpv4.FromBytes(request)
	if err != nil {
		t.Fatal(err)
	}
	agent := parsed.RelayAgentInfo()
	if agent == nil || !bytes.Equal(agent.Get(dhcpv4.LinkSelectionSubOption), []byte{203, 0, 113, 1}) {
		t.Errorf("the router's link is lost: got option 82 %v", agent)
	}
	send(t, l.smee, answer(t, request, dhcpv4.MessageTypeOffer), from)
	offer, source := receive(t, router)
	if giaddr := net.IP(offer[24:28]); !giaddr.Equal(net.IP{203, 0, 113, 1}) || source != netip.AddrPortFrom(podIP, 67) {
		t.Errorf("got giaddr %v from %v", giaddr, source)
	}
	if bytes.Contains(offer[240:], []byte{82, 6, 5, 4}) {
		t.Error("our option 82 reaches the router")
	}
}

// TestSeveralListeners: the answer goes to the VLAN that asked, and each has its own link address.
func TestSeveralListeners(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	other := nstest.New(t)
	nstest.Veth(t, l.pod, "macvlan1", other, "lan1")
	lan := l.lan
	p := l.start(t, "LISTENERS=macvlan0=192.0.2.1,macvlan1=198.51.100.1", "AGENT_OPTIONS=circuit-id,link-selection")
	p.waitReady(t)
	second := rawSocket(t, other, "lan1", unix.ETH_P_IP)
	for _, test := range []struct {
		conn, silent *packet.Conn
		circuit      string
		link         net.IP
	}{{lan, second, "macvlan0", net.IP{192, 0, 2, 1}}, {second, lan, "macvlan1", net.IP{198, 51, 100, 1}}} {
		l.lan = test.conn
		l.broadcast(t, discover(t).ToBytes())
		request, from := receive(t, l.smee)
		parsed, err := dhcpv4.FromBytes(request)
		if err != nil {
			t.Fatal(err)
		}
		agent := parsed.RelayAgentInfo()
		if agent == nil || string(agent.Get(dhcpv4.AgentCircuitIDSubOption)) != test.circuit ||
			!test.link.Equal(agent.Get(dhcpv4.LinkSelectionSubOption)) {
			t.Errorf("got option 82 %v", agent)
		}
		send(t, l.smee, answer(t, request, dhcpv4.MessageTypeOffer), from)
		got := l.hear(t)
		if offer, err := dhcpv4.FromBytes(got.Payload); err != nil || offer.RelayAgentInfo() != nil {
			t.Errorf("our option 82 reaches the client (%v)", err)
		}
		l.lan = test.silent
		l.quiet(t)
	}
	l.lan = lan
}

// TestNothingLargerThanTheMTU: a frame cannot be fragmented by the relay, so it is dropped and counted.
func TestNothingLargerThanTheMTU(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t)
	p.waitReady(t)
	l.broadcast(t, discover(t).ToBytes())
	request, from := receive(t, l.smee)
	reply := answer(t, request, dhcpv4.MessageTypeOffer)
	send(t, l.smee, append(reply, make([]byte, 1473-len(reply))...), from)
	p.wantMetric(t, `dhcp_relay_drops_total{direction="to-client",listener="macvlan0",reason="too-long"} 1`)
	send(t, l.smee, append(reply, make([]byte, 1472-len(reply))...), from)
	l.hear(t)
}

// TestIncumbentOptionsPast576: a long request is relayed whole; the incumbent dropped it silently.
func TestIncumbentOptionsPast576(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.start(t).waitReady(t)
	long := discover(t)
	for i := range 4 {
		long.UpdateOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(200+i), bytes.Repeat([]byte{byte(i)}, 250)))
	}
	sent := long.ToBytes()
	l.broadcast(t, sent)
	if got, _ := receive(t, l.smee); len(got) != len(sent) || !bytes.Equal(got[240:], sent[240:]) {
		t.Errorf("got %d bytes of %d", len(got), len(sent))
	}
}

// TestIncumbentGiaddrOfOddRequests: BOOTP without a cookie, a missing END and a client's own option 82 got giaddr
// 127.1.1.1 from the incumbent, to which no server can answer.
func TestIncumbentGiaddrOfOddRequests(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod.Addr(t, "macvlan0", "127.1.1.1/32")
	l.start(t, "TRUSTED_LISTENERS=macvlan0", "CLIENT_RATE=-1").waitReady(t)
	plain := discover(t).ToBytes()
	bootp := append(bytes.Clone(plain[:236]), make([]byte, 64)...)
	endless := bytes.TrimRight(bytes.Clone(plain), "\x00")
	endless = endless[:len(endless)-1]
	option := dhcpv4.OptGeneric(dhcpv4.OptionRelayAgentInformation, []byte{1, 1, 'x'})
	agent := discover(t, dhcpv4.WithOption(option)).ToBytes()
	for name, sent := range map[string][]byte{"no cookie": bootp, "no end": endless, "option 82": agent} {
		l.broadcast(t, sent)
		got, _ := receive(t, l.smee)
		if giaddr := netip.AddrFrom4([4]byte(got[24:28])); giaddr != podIP {
			t.Errorf("%s: got giaddr %v", name, giaddr)
		}
		if !bytes.Equal(got[28:len(sent)], sent[28:]) {
			t.Errorf("%s: other bytes changed", name)
		}
	}
}
