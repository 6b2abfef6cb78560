package inside

import (
	"net"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// server is a DHCP server for both families that knows every machine, and counts what it is asked.
type server struct {
	mu    sync.Mutex
	asked map[dhcpv4.TransactionID][]*dhcpv4.DHCPv4
}

func newServer(t *testing.T, ns *ns) *server {
	t.Helper()
	s := &server{asked: map[dhcpv4.TransactionID][]*dhcpv4.DHCPv4{}}
	var v4, v6 *net.UDPConn
	ns.do(t, func() (err error) {
		if v4, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(serverAddr), Port: dhcpv4.ServerPort}); err != nil {
			return err
		}
		v6, err = net.ListenUDP("udp6", &net.UDPAddr{IP: net.ParseIP(serverAddr6), Port: dhcpv6.DefaultServerPort})
		return err
	})
	var done sync.WaitGroup
	done.Go(func() { serve(v4, s.answer) })
	done.Go(func() { serve(v6, answer6) })
	t.Cleanup(func() {
		_, _ = v4.Close(), v6.Close()
		done.Wait()
	})
	return s
}

// serve answers until the socket is closed. An answer goes to where the request came from.
func serve(conn *net.UDPConn, answer func([]byte) []byte) {
	buffer := make([]byte, 2000)
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		if reply := answer(buffer[:n]); reply != nil {
			_, _ = conn.WriteToUDPAddrPort(reply, from)
		}
	}
}

func (s *server) answer(packet []byte) []byte {
	request, err := dhcpv4.FromBytes(packet)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	s.asked[request.TransactionID] = append(s.asked[request.TransactionID], request)
	s.mu.Unlock()
	kind := dhcpv4.MessageTypeOffer
	if request.MessageType() == dhcpv4.MessageTypeRequest {
		kind = dhcpv4.MessageTypeAck
	}
	address := request.ClientIPAddr
	if address.IsUnspecified() {
		address = net.IPv4(192, 0, 2, 100+request.ClientHWAddr[5]%100)
	}
	reply, err := dhcpv4.NewReplyFromRequest(request, dhcpv4.WithMessageType(kind), dhcpv4.WithYourIP(address),
		dhcpv4.WithServerIP(net.ParseIP(serverAddr)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.ParseIP(serverAddr))),
		dhcpv4.WithNetmask(net.CIDRMask(24, 32)), dhcpv4.WithLeaseTime(uint32(time.Hour/time.Second)))
	if err != nil {
		return nil
	}
	return reply.ToBytes()
}

// requests are those of a transaction that have come.
func (s *server) requests(xid dhcpv4.TransactionID) []*dhcpv4.DHCPv4 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[xid]
}

func answer6(packet []byte) []byte {
	message, err := dhcpv6.FromBytes(packet)
	if err != nil {
		return nil
	}
	forward, ok := message.(*dhcpv6.RelayMessage)
	if !ok {
		return nil
	}
	inner, err := forward.GetInnerMessage()
	if err != nil {
		return nil
	}
	make := dhcpv6.NewReplyFromMessage
	if inner.Type() == dhcpv6.MessageTypeSolicit {
		make = dhcpv6.NewAdvertiseFromSolicit
	}
	iana := inner.Options.OneIANA()
	if iana == nil {
		return nil
	}
	id := &dhcpv6.DUIDLL{HWType: 1, LinkLayerAddr: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
	reply, err := make(inner, dhcpv6.WithServerID(id),
		withIANA(iana.IaId, dhcpv6.OptIAAddress{
			IPv6Addr: net.ParseIP("2001:db8:1::50"), PreferredLifetime: time.Hour, ValidLifetime: time.Hour,
		}))
	if err != nil {
		return nil
	}
	back, err := dhcpv6.NewRelayReplFromRelayForw(forward, reply)
	if err != nil {
		return nil
	}
	return back.ToBytes()
}

func withIANA(id [4]byte, address dhcpv6.OptIAAddress) dhcpv6.Modifier {
	return func(d dhcpv6.DHCPv6) {
		d.AddOption(&dhcpv6.OptIANA{IaId: id, Options: dhcpv6.IdentityOptions{Options: dhcpv6.Options{&address}}})
	}
}
