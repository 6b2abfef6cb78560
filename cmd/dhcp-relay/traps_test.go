package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
)

// The numbers are those of the table in TRAPS.md.

// offered sends a DISCOVER through the relay and has the server answer it with an OFFER that modifiers shape.
func (l *lab) offered(t *testing.T, kind dhcpv4.MessageType, modifiers ...dhcpv4.Modifier) frame.Datagram {
	t.Helper()
	l.broadcast(t, discover(t).ToBytes())
	request, from := receive(t, l.smee)
	send(t, l.smee, answer(t, request, kind, modifiers...), from)
	return l.hear(t)
}

// TestTrap06To10ReplyAddressing is the matrix of pkg/relay over the wire: broadcast flag x yiaddr x ciaddr x message
// type x htype and hlen.
func TestTrap06To10ReplyAddressing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.start(t, "SOURCE_ADDRESS="+serviceIP.String(), "CLIENT_RATE=-1").waitReady(t)
	ciaddr := netip.MustParseAddr("192.0.2.60")
	plain := discover(t).ToBytes()
	for _, hardware := range [][2]byte{{1, 6}, {1, 0}, {1, 16}, {32, 0}, {32, 6}, {6, 6}} {
		for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak} {
			for flags := range 8 {
				broadcast, hasYiaddr, hasCiaddr := flags&1 != 0, flags&2 != 0, flags&4 != 0
				name := fmt.Sprintf("%v htype=%d hlen=%d B=%v yiaddr=%v ciaddr=%v",
					kind, hardware[0], hardware[1], broadcast, hasYiaddr, hasCiaddr)
				request := bytes.Clone(plain)
				copy(request[1:], hardware[:])
				l.broadcast(t, request)
				reply, from := receive(t, l.smee)
				reply[0] = 2
				reply[bytes.Index(reply[240:], []byte{53, 1, 1})+242] = byte(kind)
				mac, ip := frame.MAC(clientMAC), netip.MustParseAddr("255.255.255.255")
				if hasYiaddr {
					copy(reply[16:], clientIP.AsSlice())
					ip = clientIP // trap 7; without it trap 8
				}
				if hasCiaddr {
					copy(reply[12:], ciaddr.AsSlice())
					ip = ciaddr // trap 9
				}
				if broadcast {
					reply[10] |= 0x80
				}
				if broadcast || kind == dhcpv4.MessageTypeNak || hardware != [2]byte{1, 6} { // traps 6, 10 and 12
					mac, ip = frame.Broadcast, netip.MustParseAddr("255.255.255.255")
				}
				send(t, l.smee, reply, from)
				got := l.hear(t)
				want := frame.Datagram{
					SrcMAC: got.SrcMAC, DstMAC: mac,
					Src: netip.AddrPortFrom(serviceIP, 67), Dst: netip.AddrPortFrom(ip, 68), Payload: reply,
				}
				if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
		}
	}
}

// TestTrap11SourceIsNeverLoopback: the incumbent's replies come from 127.1.1.1, which its init script put on the
// listener.
func TestTrap11SourceIsNeverLoopback(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		address string
		env     []string
		want    netip.Addr
	}{
		"127.1.1.1 on the listener": {"127.1.1.1/32", nil, podIP},
		"an address of the VLAN":    {"192.0.2.9/24", nil, netip.MustParseAddr("192.0.2.9")},
		"the service IP":            {"192.0.2.9/24", []string{"SOURCE_ADDRESS=192.0.2.2"}, serviceIP},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.pod.Addr(t, "macvlan0", test.address)
			l.start(t, test.env...).waitReady(t)
			if got := l.offered(t, dhcpv4.MessageTypeOffer); got.Src != netip.AddrPortFrom(test.want, 67) {
				t.Errorf("got an offer from %v, want it from %v", got.Src, test.want)
			}
		})
	}
}

// TestTrap05GiaddrIsNeverLoopback: not ready instead.
func TestTrap05GiaddrIsNeverLoopback(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "SERVERS=127.0.0.1")
	testwait.Until(t, "the reason is told", func() bool {
		code, body := p.page("/readyz")
		return code == 503 && strings.Contains(body, "towards server 127.0.0.1:67 this host is 127.0.0.1")
	})
	p.waitListening(t)
	l.broadcast(t, discover(t).ToBytes())
	p.wantMetric(t, `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="no-giaddr"} 1`)
}

// TestTrap04MTUOfTheInterface: option 82 is left out where the interface towards the server has no room for it.
func TestTrap04MTUOfTheInterface(t *testing.T) {
	t.Parallel()
	for mtu, fits := range map[int]bool{280: false, 1500: true} {
		l := newLab(t)
		if err := l.pod.Links().LinkSetMTU(l.pod.Link(t, "eth0"), mtu); err != nil {
			t.Fatal(err)
		}
		l.start(t, "AGENT_OPTIONS=circuit-id").waitReady(t)
		l.broadcast(t, discover(t).ToBytes())
		request, _ := receive(t, l.smee)
		if got := bytes.Contains(request[240:], []byte("\x52\x0a\x01\x08macvlan0")); got != fits {
			t.Errorf("MTU %d: option 82 is there: %v", mtu, got)
		}
	}
}

// TestTrap14VLANLeak: on a trunk, other VLANs' frames arrive as frames for other hosts, with their tags taken off.
func TestTrap14VLANLeak(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t)
	p.waitReady(t)
	b := append(make([]byte, frame.HeaderLen), discover(t).ToBytes()...)
	header := frame.Header{
		SrcMAC: frame.MAC(clientMAC), DstMAC: frame.Broadcast, Dst: [4]byte{255, 255, 255, 255}, SrcPort: 68, DstPort: 67,
	}
	header.Put(b)
	tagged := func(id uint16) []byte {
		out := append([]byte(nil), b[:12]...)
		out = binary.BigEndian.AppendUint16(out, 0x8100)
		out = binary.BigEndian.AppendUint16(out, id)
		return append(out, b[12:]...)
	}
	foreign := append([]byte(nil), b...)
	copy(foreign, []byte{2, 0xfe, 0, 0, 0, 1})
	for name, raw := range map[string][]byte{"VLAN 42": tagged(42), "another host": foreign} {
		if _, err := l.lan.WriteTo(raw, &packet.Addr{HardwareAddr: raw[:6]}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	silent(t, l.smee)
	// A priority tag is no VLAN.
	if _, err := l.lan.WriteTo(tagged(7<<13), &packet.Addr{HardwareAddr: b[:6]}); err != nil {
		t.Fatal(err)
	}
	receive(t, l.smee)
}

// TestTrap15ReversePathFilter: a client that rebinds has an address that is routed elsewhere from the pod.
func TestTrap15ReversePathFilter(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod.Do(t, func() error {
		for _, link := range []string{"all", "macvlan0"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/"+link+"/rp_filter", []byte("1"), 0); err != nil {
				return err
			}
		}
		return nil
	})
	l.start(t).waitReady(t)
	rebind := discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(clientIP.AsSlice()))
	header := frame.Header{DstMAC: frame.Broadcast, Src: clientIP.As4(), Dst: [4]byte{255, 255, 255, 255}}
	l.transmit(t, header, rebind.ToBytes())
	request, from := receive(t, l.smee)
	send(t, l.smee, answer(t, request, dhcpv4.MessageTypeAck, dhcpv4.WithClientIP(clientIP.AsSlice())), from)
	if got := l.hear(t); got.Dst != netip.AddrPortFrom(clientIP, 68) {
		t.Errorf("got an ACK to %v", got.Dst)
	}
}

// TestTrap16ChecksumOffload: a sender in the kernel's own stack leaves the sum to hardware that a veth does not have.
func TestTrap16ChecksumOffload(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t)
	p.waitReady(t)
	l.client.Addr(t, "lan0", "192.0.2.50/24")
	l.client.Do(t, func() error {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: clientIP.AsSlice(), Port: 68})
		if err != nil {
			return err
		}
		defer conn.Close()
		raw, err := conn.SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
			_ = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lan0")
		}); err != nil {
			return err
		}
		_, err = conn.WriteTo(discover(t).ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: 67})
		return err
	})
	receive(t, l.smee)

	b := append(make([]byte, frame.HeaderLen), discover(t).ToBytes()...)
	header := frame.Header{
		SrcMAC: frame.MAC(clientMAC), DstMAC: frame.Broadcast, Dst: [4]byte{255, 255, 255, 255}, SrcPort: 68, DstPort: 67,
	}
	header.Put(b)
	b[41] ^= 0x55
	if _, err := l.lan.WriteTo(b, &packet.Addr{HardwareAddr: b[:6]}); err != nil {
		t.Fatal(err)
	}
	p.wantMetric(t, `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="bad-udp-checksum"} 1`)
	silent(t, l.smee)
}

// TestTrap17AnyServerPort: a Service translates a reply's source (tinkerbell/smee#382, tinkerbell/charts#109).
func TestTrap17AnyServerPort(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.server.Addr(t, "eth0", "10.244.0.99/24")
	l.start(t).waitReady(t)
	translated := l.listen(t, l.server, netip.MustParseAddrPort("10.244.0.99:387"))
	l.broadcast(t, discover(t).ToBytes())
	request, from := receive(t, l.smee)
	send(t, translated, answer(t, request, dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(clientIP.AsSlice())), from)
	l.hear(t)
}

// TestTrap18DeadServer: a server that no longer answers a machine is reported, asked all the same, and noticed when it
// is back.
func TestTrap18DeadServer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "DEAD_AFTER=3", "CLIENT_RATE=-1")
	p.waitReady(t)
	l.broadcast(t, discover(t).ToBytes())
	first, from := receive(t, l.smee)
	send(t, l.smee, answer(t, first, dhcpv4.MessageTypeOffer), from)
	l.hear(t)
	for range 4 {
		l.broadcast(t, discover(t).ToBytes())
		if _, from := receive(t, l.smee); from.Port() != 67 {
			t.Fatalf("asked from %v, want port 67", from)
		}
	}
	p.wantMetric(t, `dhcp_relay_server_up{server="10.244.0.11"} 0`)
	testwait.Until(t, "the log says so", func() bool {
		return strings.Contains(p.log.String(), `"server stopped answering"`)
	})
	time.Sleep(1500 * time.Millisecond) // the servers are looked at every second
	if got := p.metric(`dhcp_relay_server_up{server="10.244.0.11"}`); got != 0 ||
		strings.Contains(p.log.String(), "server answers again") {
		t.Errorf("a quiet second brought the server back: up is %v", got)
	}
	l.broadcast(t, discover(t).ToBytes())
	request, from := receive(t, l.smee)
	send(t, l.smee, answer(t, request, dhcpv4.MessageTypeOffer), from)
	l.hear(t)
	p.wantMetric(t, `dhcp_relay_server_up{server="10.244.0.11"} 1`)
	if !strings.Contains(p.log.String(), "server answers again") {
		t.Error("the server's return is not logged")
	}
}

// TestServerThatNeverAnswers is the first classic mistake: it is explained, and the server is not dead, since it may know
// nobody who asks.
func TestServerThatNeverAnswers(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "DEAD_AFTER=3", "CLIENT_RATE=-1")
	p.waitReady(t)
	for range 26 {
		l.broadcast(t, discover(t).ToBytes())
		if _, from := receive(t, l.smee); from.Port() != 67 {
			t.Fatalf("asked from %v, want port 67", from)
		}
	}
	testwait.Until(t, "the explanation", func() bool {
		return strings.Contains(p.log.String(), "no reply from server at all")
	})
	l.broadcast(t, discover(t).ToBytes())
	if _, from := receive(t, l.smee); from.Port() != 67 {
		t.Errorf("asked from %v, want port 67", from)
	}
	p.wantMetric(t, `dhcp_relay_server_up{server="10.244.0.11"} 1`)
}

// TestTrap19AnswerFromTheAddressThatWasAsked is tinkerbell/charts#109: a renewing client asked the service IP, which is
// one of several addresses here, and takes an answer from no other.
func TestTrap19AnswerFromTheAddressThatWasAsked(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.pod.Addr(t, "eth0", "10.244.0.77/32")
	p := l.start(t)
	p.waitReady(t)
	client := l.listen(t, l.server, netip.AddrPortFrom(serverIP, 68))
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeRequest, dhcpv4.MessageTypeInform} {
		renew := discover(t, dhcpv4.WithMessageType(kind), dhcpv4.WithClientIP(serverIP.AsSlice()))
		send(t, client, renew.ToBytes(), netip.MustParseAddrPort("10.244.0.77:67"))
		request, from := receive(t, l.smee)
		if giaddr := netip.AddrFrom4([4]byte(request[24:28])); giaddr != podIP || from.Addr() != podIP {
			t.Errorf("%v: got giaddr %v from %v", kind, giaddr, from)
		}
		send(t, l.smee, answer(t, request, dhcpv4.MessageTypeAck), from)
		ack, source := receive(t, client)
		if source != netip.MustParseAddrPort("10.244.0.77:67") {
			t.Errorf("%v: got an answer from %v", kind, source)
		}
		if giaddr := ack[24:28]; !bytes.Equal(giaddr, make([]byte, 4)) {
			t.Errorf("%v: got giaddr %v in the answer", kind, giaddr)
		}
	}
	release := discover(t, dhcpv4.WithMessageType(dhcpv4.MessageTypeRelease), dhcpv4.WithClientIP(serverIP.AsSlice()))
	send(t, client, release.ToBytes(), netip.MustParseAddrPort("10.244.0.77:67"))
	receive(t, l.smee)
	p.wantMetric(t, `dhcp_relay_packets_total{direction="to-server",listener="unicast",type="release"} 1`)
}

// TestTrap02UntrustedRelayIsNoReflector, and the incumbent's defect: one request with a foreign giaddr became ten.
func TestTrap02UntrustedRelayIsNoReflector(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t)
	p.waitReady(t)
	foreign := discover(t, dhcpv4.WithRelay(net.IP{203, 0, 113, 1})).ToBytes()
	l.broadcast(t, foreign)
	p.wantMetric(t, `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="untrusted-relay"} 1`)
	silent(t, l.smee)
	if !strings.Contains(p.log.String(), "TRUSTED_RELAYS") {
		t.Error("the log does not name the remedy")
	}
	own := discover(t, dhcpv4.WithRelay(podIP.AsSlice())).ToBytes()
	l.broadcast(t, own)
	p.wantMetric(t, `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="loop"} 1`)
}

// TestTrap20OneRequestOneCopy: nothing of what the relay sends is read back (one packet became ten in the incumbent).
func TestTrap20OneRequestOneCopy(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.start(t, "TRUSTED_RELAYS=0.0.0.0/0").waitReady(t)
	for _, m := range []*dhcpv4.DHCPv4{discover(t), discover(t, dhcpv4.WithRelay(net.IP{203, 0, 113, 1}))} {
		l.broadcast(t, m.ToBytes())
		receive(t, l.smee)
		silent(t, l.smee)
	}
}

// TestTrap25RogueServer: no pod plays DHCP server on the VLAN, nor does a machine there through the relay.
func TestTrap25RogueServer(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t)
	p.waitReady(t)
	request := discover(t).ToBytes()
	offer := answer(t, request, dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(clientIP.AsSlice()))
	send(t, l.smee, offer, netip.AddrPortFrom(podIP, 67))
	p.wantMetric(t, `dhcp_relay_drops_total{direction="to-client",listener="unicast",reason="unsolicited"} 1`)
	l.broadcast(t, offer)
	p.wantMetric(t, `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="reply-from-client"} 1`)
	l.quiet(t)
	// Somebody who saw the request, but answers another client.
	l.broadcast(t, request)
	_, from := receive(t, l.smee)
	offer[33]++
	send(t, l.smee, offer, from)
	l.quiet(t)
	offer[33]--
	send(t, l.smee, offer, from)
	l.hear(t)
}

// TestTrap25RogueServerByTrace: the trace does not tell a pod what its answer has to match.
func TestTrap25RogueServerByTrace(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "ADMIN_ADDRESS=:9067")
	p.waitReady(t)
	l.broadcast(t, discover(t).ToBytes())
	receive(t, l.smee)
	get := func(from *nstest.NS) (status, body string) {
		from.Do(t, func() error { // Do holds the thread in the namespace, so dial on it
			conn, err := net.Dial("tcp", "10.244.0.10:9067")
			if err != nil {
				return err
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			if _, err := io.WriteString(conn, "GET /trace?last=1 HTTP/1.0\r\n\r\n"); err != nil {
				return err
			}
			b, err := io.ReadAll(conn)
			status, body, _ = strings.Cut(string(b), "\r\n")
			return err
		})
		return status, body
	}
	chaddr := string(discover(t).ToBytes()[28:34])
	if status, body := get(l.server); !strings.Contains(status, "403") || strings.Contains(body, chaddr) {
		t.Errorf("a pod gets %s", status)
	}
	if status, body := get(l.pod); !strings.Contains(status, "200") || !strings.Contains(body, chaddr) {
		t.Errorf("the pod itself gets %s", status)
	}
}

// TestTrap25TokenSurvivesRestart: what another process relayed is known by its token.
func TestTrap25TokenSurvivesRestart(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	key := "TOKEN_KEY=0123456789abcdef"
	first := l.start(t, key, "SOURCE_ADDRESS="+serviceIP.String())
	first.waitReady(t)
	l.broadcast(t, discover(t).ToBytes())
	request, from := receive(t, l.smee)
	offer := answer(t, request, dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(clientIP.AsSlice()))
	_ = first.Process.Signal(unix.SIGTERM)
	<-first.done

	second := l.start(t, key)
	second.waitReady(t)
	forged := bytes.Clone(offer)
	forged[7]++ // xid
	send(t, l.smee, forged, from)
	second.wantMetric(t, `dhcp_relay_drops_total{direction="to-client",listener="unicast",reason="unsolicited"} 1`)
	send(t, l.smee, offer, from)
	got := l.hear(t)
	if bytes.Contains(got.Payload[240:], []byte{9, 35}) || bytes.Contains(got.Payload[240:], []byte{82}) {
		t.Error("the token reaches the client")
	}
}

// TestTrap26OneClientCannotFlood: its own requests are dropped, not those of others.
func TestTrap26OneClientCannotFlood(t *testing.T) {
	l := newLab(t)
	p := l.start(t, "CLIENT_RATE=1")
	p.waitReady(t)
	for range 10 {
		l.broadcast(t, discover(t).ToBytes())
	}
	receive(t, l.smee)
	receive(t, l.smee)
	p.wantMetric(t, `dhcp_relay_drops_total{direction="to-server",listener="macvlan0",reason="client-limit"} 8`)
	other := discover(t).ToBytes()
	other[33]++
	l.broadcast(t, other)
	receive(t, l.smee)
}

// TestTrap27EveryServerGetsOneCopy, and each reply passes.
func TestTrap27EveryServerGetsOneCopy(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	l.server.Addr(t, "eth0", "10.244.0.12/24")
	l.start(t, "SERVERS=10.244.0.11,10.244.0.12:6767").waitReady(t)
	second := l.listen(t, l.server, netip.MustParseAddrPort("10.244.0.12:6767"))
	l.broadcast(t, discover(t).ToBytes())
	for _, conn := range []*net.UDPConn{l.smee, second} {
		request, from := receive(t, conn)
		send(t, conn, answer(t, request, dhcpv4.MessageTypeOffer), from)
		l.hear(t)
		silent(t, conn)
	}
}
