package main

import (
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
)

var (
	agentIP6   = netip.MustParseAddr("2001:db8:244::20") // of a relay agent at a router
	agentLink6 = netip.MustParseAddr("2001:db8:203:4::1")
	agentFE80  = netip.MustParseAddr("fe80::77") // of one on the LAN
)

// agentForward is another relay agent's RELAY-FORW.
func agentForward(t *testing.T, hops uint8, inner dhcpv6.DHCPv6, options ...dhcpv6.Option) *dhcpv6.RelayMessage {
	t.Helper()
	m := &dhcpv6.RelayMessage{
		MessageType: dhcpv6.MessageTypeRelayForward, HopCount: hops,
		LinkAddr: agentLink6.AsSlice(), PeerAddr: clientFE80.AsSlice(),
	}
	for _, option := range append(options, dhcpv6.OptRelayMessage(inner)) {
		m.AddOption(option)
	}
	return m
}

// TestAgentsUnicast6: a router's helper sends to the pod's address, and is answered from there, at the port that it
// sends from if it says so (RFC 8357).
func TestAgentsUnicast6(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	l.server.Addr(t, "eth0", agentIP6.String()+"/64")
	p := l.start6(t, "TRUSTED_RELAYS="+agentIP6.String()+"/128,2001:db8:203::/48")
	p.waitReady(t)
	for name, test := range map[string]struct {
		port    uint16
		options []dhcpv6.Option
	}{
		"port 547":     {port: 547},
		"another port": {port: 5470, options: []dhcpv6.Option{dhcpv6.OptRelayPort(0)}},
	} {
		t.Run(name, func(t *testing.T) {
			var agent *net.UDPConn
			l.server.Do(t, func() (err error) {
				agent, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(agentIP6, test.port)))
				return err
			})
			defer agent.Close()
			sent := agentForward(t, 0, solicit(t), test.options...)
			send(t, agent, sent.ToBytes(), netip.AddrPortFrom(podIP6, 547))
			got, from := receive(t, l.smee6)
			m := forwarded(t, got)
			if m.HopCount != 1 || !m.LinkAddr.IsUnspecified() || !m.PeerAddr.Equal(agentIP6.AsSlice()) {
				t.Errorf("got %s", m.LongString(0))
			}
			if _, mac := m.Options.ClientLinkLayerAddress(); mac != nil {
				t.Error("option 79 names the agent's MAC address")
			}
			send(t, l.smee6, advertise(t, m), from)
			reply, source := receive(t, agent)
			if source != netip.AddrPortFrom(podIP6, 547) {
				t.Errorf("got an answer from %v", source)
			}
			back := forwarded(t, reply)
			if back.MessageType != dhcpv6.MessageTypeRelayReply || !back.LinkAddr.Equal(agentLink6.AsSlice()) ||
				!back.PeerAddr.Equal(clientFE80.AsSlice()) {
				t.Errorf("got %s", back.LongString(0))
			}
		})
	}
}

// TestNested6: an agent on the LAN is answered at its link-local address, port 547.
func TestNested6(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	p := l.start6(t, "TRUSTED_RELAYS="+agentFE80.String()+"/128,2001:db8:203::/48",
		"DHCPV6_LINK_ADDRESSES=macvlan0="+linkIP6.String())
	p.waitReady(t)
	l.askFrom(t, agentForward(t, 6, solicit(t)).ToBytes(), agentFE80, 547)
	got, from := receive(t, l.smee6)
	m := forwarded(t, got)
	if m.HopCount != 7 || !m.LinkAddr.Equal(linkIP6.AsSlice()) || !m.PeerAddr.Equal(agentFE80.AsSlice()) {
		t.Errorf("got %s", m.LongString(0))
	}
	send(t, l.smee6, advertise(t, m), from)
	heard := l.hear6(t, 547)
	back := forwarded(t, heard.Payload)
	if heard.Dst != netip.AddrPortFrom(agentFE80, 547) || back.MessageType != dhcpv6.MessageTypeRelayReply {
		t.Errorf("got %v: %s", heard.Dst, back.LongString(0))
	}
}

// TestBadInput6: each is counted by its reason, the server hears nothing, and a machine is served afterwards.
func TestBadInput6(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	p := l.start6(t, "TRUSTED_RELAYS="+agentFE80.String()+"/128")
	p.waitReady(t)
	nest := func(levels int) []byte {
		var m dhcpv6.DHCPv6 = solicit(t)
		for range levels {
			m = &dhcpv6.RelayMessage{
				MessageType: dhcpv6.MessageTypeRelayForward, LinkAddr: net.IPv6zero, PeerAddr: agentFE80.AsSlice(),
				Options: dhcpv6.RelayOptions{Options: dhcpv6.Options{dhcpv6.OptRelayMessage(m)}},
			}
		}
		return m.ToBytes()
	}
	reply := solicit(t)
	reply.MessageType = dhcpv6.MessageTypeReply
	relayReply := agentForward(t, 0, solicit(t))
	relayReply.MessageType = dhcpv6.MessageTypeRelayReply
	whole := solicit(t).ToBytes()
	for name, test := range map[string]struct {
		payload []byte
		from    netip.Addr // the machine, unless it is set
		want    string
	}{
		"garbage":                 {payload: []byte("\x01garbage, and no DHCPv6"), want: "bad-options"},
		"empty":                   {want: "short-message"},
		"option cut off":          {payload: whole[:len(whole)-1], want: "bad-options"},
		"option of 65,535 bytes":  {payload: append(whole[:len(whole):len(whole)], 0, 16, 255, 255, 1), want: "bad-options"},
		"type 0":                  {payload: []byte{0, 1, 2, 3}, want: "bad-type"},
		"server's reply":          {payload: reply.ToBytes(), want: "reply-from-client"},
		"server's relay-reply":    {payload: relayReply.ToBytes(), want: "reply-from-client"},
		"RELAY-FORW of a machine": {payload: agentForward(t, 0, solicit(t)).ToBytes(), want: "untrusted-relay"},
		"spoofed link address":    {payload: agentForward(t, 0, solicit(t)).ToBytes(), from: agentFE80, want: "untrusted-link-address"},
		"hop limit":               {payload: agentForward(t, 8, solicit(t)).ToBytes(), from: agentFE80, want: "hop-limit"},
		"nest of 33":              {payload: nest(33), from: agentFE80, want: "too-deep"},
		"no message inside":       {payload: nest(1)[:34], from: agentFE80, want: "bad-relay-message"},
		"long, and good":          {payload: append(whole[:len(whole):len(whole)], append([]byte{0, 16, 4, 176}, make([]byte, 1200)...)...), want: ""},
	} {
		t.Run(name, func(t *testing.T) {
			line := `dhcp_relay6_drops_total{direction="to-server",listener="macvlan0",reason="` + test.want + `"}`
			from, before := test.from, p.metric(line)
			if !from.IsValid() {
				from = clientFE80
			}
			l.askFrom(t, test.payload, from, 546)
			if test.want == "" { // a long message is relayed, by fragments where it has to be
				got, _ := receive(t, l.smee6)
				if inner := forwarded(t, got).Options.RelayMessage().ToBytes(); string(inner) != string(test.payload) {
					t.Errorf("%d bytes arrived as %d", len(test.payload), len(inner))
				}
				return
			}
			testwait.Until(t, line, func() bool { return p.metric(line) == before+1 })
			silent(t, l.smee6)
		})
	}
	l.ask(t, solicit(t).ToBytes())
	got, from := receive(t, l.smee6)
	send(t, l.smee6, advertise(t, forwarded(t, got)), from)
	l.hear6(t, 546)
}

// TestFragmentIsCounted6: a machine's message in fragments is not read, and its first fragment is counted.
func TestFragmentIsCounted6(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	p := l.start6(t)
	p.waitReady(t)
	group := frame.AllRelays()
	whole := append(make([]byte, frame.HeaderLen6), solicit(t).ToBytes()...)
	header := frame.Header6{
		SrcMAC: frame.MAC(clientMAC), DstMAC: frame.GroupMAC(group), Src: clientFE80.As16(), Dst: group,
		SrcPort: 546, DstPort: 547,
	}
	header.Put(whole)
	const ip = frame.HeaderLen6 - frame.UDPLen
	for _, offset := range []byte{1, 8} { // the first one, more follow; and a later one
		b := append(append([]byte(nil), whole[:ip]...), 17, 0, 0, offset, 0, 0, 0, 9)
		b = append(b, whole[ip:ip+16]...)
		b[20], b[18], b[19] = 44, 0, byte(len(b)-ip)
		l.put(t, b)
	}
	l.ask(t, solicit(t).ToBytes())
	receive(t, l.smee6)
	p.wantMetric(t, `dhcp_relay6_drops_total{direction="to-server",listener="macvlan0",reason="fragment"} 1`)
}

// TestLargestDatagram6: an agent sends as much as UDP takes, most of it one option; a server does as well. Both are
// counted, and the next message is relayed.
func TestLargestDatagram6(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	l.server.Addr(t, "eth0", agentIP6.String()+"/64")
	p := l.start6(t, "TRUSTED_RELAYS="+agentIP6.String()+"/128,2001:db8:203::/48")
	p.waitReady(t)
	var agent *net.UDPConn
	l.server.Do(t, func() (err error) {
		agent, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(agentIP6, 5470)))
		return err
	})
	defer agent.Close()
	const most = 65_527 // bytes of payload (RFC 8200 section 4.5 and RFC 768)
	fill := func(m *dhcpv6.RelayMessage) []byte {
		n := most - len(m.ToBytes()) - 4
		m.Options.Options = append([]dhcpv6.Option{
			&dhcpv6.OptionGeneric{OptionCode: dhcpv6.OptionVendorOpts, OptionData: make([]byte, n)},
		}, m.Options.Options...)
		return m.ToBytes()
	}
	pod := netip.AddrPortFrom(podIP6, 547)
	send(t, agent, fill(agentForward(t, 0, solicit(t))), pod)
	p.wantMetric(t, `dhcp_relay6_drops_total{direction="to-server",listener="unicast",reason="truncated"} 1`)
	reply := agentForward(t, 0, solicit(t))
	reply.MessageType = dhcpv6.MessageTypeRelayReply
	send(t, l.smee6, fill(reply), pod)
	p.wantMetric(t, `dhcp_relay6_drops_total{direction="to-client",listener="unicast",reason="truncated"} 1`)
	send(t, agent, agentForward(t, 0, solicit(t)).ToBytes(), pod)
	receive(t, l.smee6)
}

// TestLongMessagesAreFragmented and put together again by the server's kernel: with the RELAY-FORW they exceed the MTU.
func TestLongMessagesAreFragmented(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	p := l.start6(t)
	p.waitReady(t)
	whole := solicit(t).ToBytes()
	n := 1500 - frame.IPv6Len - frame.UDPLen - len(whole) - 4
	sent := make([]byte, len(whole)+4+n)
	copy(sent[copy(sent, whole):], []byte{0, 16, byte(n >> 8), byte(n)})
	l.ask(t, sent)
	got, _ := receive(t, l.smee6)
	if inner := forwarded(t, got).Options.RelayMessage().ToBytes(); string(inner) != string(sent) || len(got) <= 1452 {
		t.Errorf("%d bytes arrived as %d", len(sent), len(inner))
	}
}

// TestReplyNobodyAskedFor6 is dropped and counted, and so is one that names another link.
func TestReplyNobodyAskedFor6(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	p := l.start6(t, "DHCPV6_LINK_ADDRESSES=macvlan0="+linkIP6.String())
	p.waitReady(t)
	l.ask(t, solicit(t).ToBytes())
	got, from := receive(t, l.smee6)
	asked := advertise(t, forwarded(t, got))
	unsolicited, wrong := append([]byte(nil), asked...), append([]byte(nil), asked...)
	unsolicited[33]++ // the peer address
	wrong[17]++       // the link address
	send(t, l.smee6, unsolicited, from)
	send(t, l.smee6, wrong, from)
	p.wantMetric(t, `dhcp_relay6_drops_total{direction="to-client",listener="unicast",reason="unsolicited"} 1`)
	p.wantMetric(t, `dhcp_relay6_drops_total{direction="to-client",listener="unicast",reason="wrong-link"} 1`)
	p.wantMetric(t, `dhcp_relay6_packets_total{direction="to-client",listener="macvlan0",type="advertise"} 0`)
	send(t, l.smee6, asked, from)
	l.hear6(t, 546)
}

// TestCopyGetsNoAnswer6: another machine on the LAN that repeats a machine's message, with its own MAC address in the
// frame, is not heard, and the answer goes to the machine.
func TestCopyGetsNoAnswer6(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	p := l.start6(t)
	p.waitReady(t)
	sent := solicit(t).ToBytes()
	l.ask(t, sent)
	got, from := receive(t, l.smee6)
	copied := append(make([]byte, frame.HeaderLen6), sent...)
	group := frame.AllRelays()
	header := frame.Header6{
		SrcMAC: frame.MAC{2, 0, 0, 0, 0, 0x66}, DstMAC: frame.GroupMAC(group), Src: clientFE80.As16(), Dst: group,
		SrcPort: 546, DstPort: 547,
	}
	header.Put(copied)
	l.put(t, copied)
	testwait.Until(t, "the copy is dropped", func() bool {
		return p.metric(`dhcp_relay6_drops_total{direction="to-server",listener="macvlan0",reason="transaction-taken"}`) == 1
	})
	send(t, l.smee6, advertise(t, forwarded(t, got)), from)
	if heard := l.hear6(t, 546); heard.DstMAC != [6]byte(clientMAC) {
		t.Errorf("the answer went to %x", heard.DstMAC)
	}
	p.wantMetric(t, `dhcp_relay6_packets_total{direction="to-server",listener="macvlan0",type="solicit"} 1`)
	if warning := "refused a copy of another machine's message"; !strings.Contains(p.log.String(), warning) {
		t.Errorf("the log has no %q", warning)
	}
}

// TestListenerWithoutIPv6: the listener needs no address, not even a link-local one. Here it is a macvlan, which takes
// only the frames of groups that somebody has joined, and nothing but its MAC address makes the source of replies.
func TestListenerWithoutIPv6(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	pod := l.pod
	if err := pod.Links().LinkSetName(rename(t, pod, "macvlan0"), "prov0"); err != nil {
		t.Fatal(err)
	}
	if err := pod.Links().LinkSetUp(pod.Link(t, "prov0")); err != nil {
		t.Fatal(err)
	}
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 7}
	if err := pod.Links().LinkAdd(&netlink.Macvlan{
		LinkAttrs: netlink.LinkAttrs{Name: "macvlan0", ParentIndex: pod.Link(t, "prov0").Attrs().Index, HardwareAddr: mac},
		Mode:      netlink.MACVLAN_MODE_BRIDGE,
	}); err != nil {
		t.Fatal(err)
	}
	pod.Do(t, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/macvlan0/disable_ipv6", []byte("1"), 0)
	})
	if err := pod.Links().LinkSetUp(pod.Link(t, "macvlan0")); err != nil {
		t.Fatal(err)
	}
	p := l.start6(t)
	p.waitReady(t)
	l.ask(t, solicit(t).ToBytes())
	got, from := receive(t, l.smee6)
	m := forwarded(t, got)
	if !m.LinkAddr.IsUnspecified() || string(m.Options.InterfaceID()) != "macvlan0" {
		t.Errorf("got %s", m.LongString(0))
	}
	send(t, l.smee6, advertise(t, m), from)
	heard := l.hear6(t, 546)
	if want := netip.AddrFrom16(frame.LinkLocal(frame.MAC(mac))); heard.Src.Addr() != want || heard.SrcMAC != [6]byte(mac) {
		t.Errorf("got source %v, %x, want %v", heard.Src, heard.SrcMAC, want)
	}
}

// rename takes a link down, so that it can have another name.
func rename(t *testing.T, ns *nstest.NS, name string) netlink.Link {
	t.Helper()
	link := ns.Link(t, name)
	if err := ns.Links().LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	return link
}

// TestGroupIsReported to switches that look at MLD, when the listener opens.
func TestGroupIsReported(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	group := rawSocket(t, l.client, "lan0", unix.ETH_P_IPV6)
	if err := group.SetPromiscuous(true); err != nil {
		t.Fatal(err)
	}
	p := l.start6(t)
	p.waitReady(t)
	deadline(t, group)
	b := make([]byte, 2048)
	for {
		n, _, err := group.ReadFrom(b)
		if err != nil {
			t.Fatalf("heard no report: %v", err)
		}
		const report = 131
		if n == frame.ReportLen && b[62] == report && hex.EncodeToString(b[70:86]) == "ff020000000000000000000000010002" {
			return
		}
	}
}

// TestCapabilities6: DHCPv6 needs what DHCPv4 does.
func TestCapabilities6(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		how   func(*exec.Cmd)
		ports bool
		fails string
	}{
		"NET_RAW and NET_BIND_SERVICE":     {how: confined("2400")},
		"NET_RAW, unprivileged ports":      {how: confined("2000"), ports: true},
		"NET_RAW only, ports privileged":   {how: confined("2000"), fails: "failed to bind UDP port 547"},
		"no NET_RAW":                       {how: confined("400"), fails: "needs the capability NET_RAW"},
		"no listener, unprivileged ports ": {how: confined("0"), ports: true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab6(t)
			if test.ports {
				unprivilegedPorts(t, l.pod)
			}
			env := []string{"SERVERS=", "DHCPV6_ENABLED=true", "DHCPV6_SERVERS=" + serverIP6.String()}
			if strings.HasPrefix(name, "no listener") {
				env = append(env, "LISTENERS=none")
			}
			p := l.startWith(t, test.how, env...)
			if test.fails == "" {
				p.waitReady(t)
				return
			}
			<-p.done
			if code := p.ProcessState.ExitCode(); code != 1 || !strings.Contains(p.log.String(), test.fails) {
				t.Errorf("got exit %d, want 1 and %q in the log:\n%s", code, test.fails, p.log)
			}
		})
	}
}

// TestIPv6Only: without DHCPv4 servers there is no DHCPv4, and nothing of it holds back readiness.
func TestIPv6Only(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	if err := l.pod.Links().AddrDel(l.pod.Link(t, "eth0"), &netlink.Addr{IPNet: &net.IPNet{
		IP: podIP.AsSlice(), Mask: net.CIDRMask(24, 32)}}); err != nil {
		t.Fatal(err)
	}
	p := l.start6(t, "SERVERS=")
	p.waitReady(t)
	l.ask(t, solicit(t).ToBytes())
	got, from := receive(t, l.smee6)
	send(t, l.smee6, advertise(t, forwarded(t, got)), from)
	l.hear6(t, 546)
	if _, metrics := p.page("/metrics"); strings.Contains(metrics, "dhcp_relay_packets_total") {
		t.Error("there are metrics of DHCPv4")
	}
}

// TestBurst6: what a machine sends in a burst arrives packet by packet.
func TestBurst6(t *testing.T) {
	l := newLab6(t)
	p := l.start6(t, "CLIENT_RATE=-1")
	p.waitReady(t)
	l.ask(t, solicit(t).ToBytes())
	receive(t, l.smee6) // the path's neighbours are known
	if err := p.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	const burst = 80
	want := map[string]bool{}
	for i := range burst {
		m := solicit(t).ToBytes()
		m[1], m[2], m[3] = 1, byte(i>>8), byte(i)
		if i == 40 {
			m = append(m, 0, 14, 0, 0) // another length in between
		}
		l.ask(t, m)
		want[string(m)] = true
	}
	if err := p.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for i := range burst {
		got, _ := receive(t, l.smee6)
		inner := string(forwarded(t, got).Options.RelayMessage().ToBytes())
		if !want[inner] {
			t.Fatalf("message %d is none that was sent", i)
		}
		delete(want, inner)
	}
}

// TestSeveralServers6: each gets every message, by name and by address, and each may answer. One that is silent is taken
// for dead, and asked all the same; its answer brings it back.
func TestSeveralServers6(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	second := netip.MustParseAddr("2001:db8:244::12")
	l.server.Addr(t, "eth0", second.String()+"/64")
	var silentOne *net.UDPConn
	l.server.Do(t, func() (err error) {
		silentOne, err = net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(second, 5470)))
		return err
	})
	defer silentOne.Close()
	p := l.start6(t, "DHCPV6_SERVERS="+serverIP6.String()+",["+second.String()+"]:5470", "DEAD_AFTER=2", "CLIENT_RATE=-1")
	p.waitReady(t)
	ask := func() (answer []byte, source netip.AddrPort) {
		l.ask(t, solicit(t).ToBytes())
		got, from := receive(t, l.smee6)
		send(t, l.smee6, advertise(t, forwarded(t, got)), from)
		l.hear6(t, 546)
		got, source = receive(t, silentOne)
		return advertise(t, forwarded(t, got)), source
	}
	usual := netip.AddrPortFrom(podIP6, 547)
	reply, source := ask()
	if source != usual {
		t.Errorf("asked from %v", source)
	}
	send(t, silentOne, reply, usual)
	l.hear6(t, 546)
	name := `server="[` + second.String() + `]:5470"`
	testwait.Until(t, "the silent server is taken for dead", func() bool {
		_, source := ask()
		return source == usual && p.metric(`dhcp_relay6_server_up{`+name+`}`) == 0
	})
	if up := p.metric(`dhcp_relay6_server_up{server="` + serverIP6.String() + `"}`); up != 1 {
		t.Errorf("the other server is up: %v", up)
	}
	reply, _ = ask()
	send(t, silentOne, reply, usual)
	l.hear6(t, 546)
	testwait.Until(t, "it is back", func() bool { return p.metric(`dhcp_relay6_server_up{`+name+`}`) == 1 })
}

// TestDrainBringsTheLastAnswer6: an answer that is under way when the relay is told to end arrives, and it ends in order.
func TestDrainBringsTheLastAnswer6(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	p := l.start6(t, "SERVERS=")
	p.waitReady(t)
	l.ask(t, solicit(t).ToBytes())
	got, from := receive(t, l.smee6)
	if err := p.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the drain begins", func() bool { return strings.Contains(p.log.String(), `"msg":"draining"`) })
	send(t, l.smee6, advertise(t, forwarded(t, got)), from)
	l.hear6(t, 546)
	<-p.done
	if code := p.ProcessState.ExitCode(); code != 0 {
		t.Errorf("got exit %d", code)
	}
}

// TestLinkAddressOfTheListener is its own where none is set, as soon as it has one, and while it does.
func TestLinkAddressOfTheListener(t *testing.T) {
	t.Parallel()
	l := newLab6(t)
	p := l.start6(t, "CLIENT_RATE=-1")
	p.waitReady(t)
	link := func() netip.Addr {
		l.ask(t, solicit(t).ToBytes())
		got, _ := receive(t, l.smee6)
		at, _ := netip.AddrFromSlice(forwarded(t, got).LinkAddr)
		return at
	}
	if got := link(); got != netip.IPv6Unspecified() {
		t.Errorf("without an address: got %v", got)
	}
	l.pod.Addr(t, "macvlan0", linkIP6.String()+"/64")
	testwait.Until(t, "the new address is the link address", func() bool { return link() == linkIP6 })
	address, err := netlink.ParseAddr(linkIP6.String() + "/64")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.pod.Links().AddrDel(l.pod.Link(t, "macvlan0"), address); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "it is not any more", func() bool { return link() == netip.IPv6Unspecified() })
}
