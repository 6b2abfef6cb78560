package main

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
)

// TestFloodOfRandomDUIDs: memory is bounded while a million machines with MAC addresses and DUIDs of their own ask, and
// a real machine, which was given an address before, is answered meanwhile and afterwards, each time that it asks no
// more than five times, unless the kernel drops what the relay does not read in time.
func TestFloodOfRandomDUIDs(t *testing.T) {
	if testing.Short() {
		t.Skip("sends a million packets; run without -short")
	}
	flood, tries := 1_000_000, 20
	if raceDetector() {
		flood = 200_000 // the relay is some ten times slower
	}
	l := newLab6(t)
	p := l.start6(t, "LOG_LEVEL=warn")
	p.waitReady(t)
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		l.answer6()
	}()
	testwait.Until(t, "the machine is served", func() bool { return l.tries6(t) == 1 })
	b := append(make([]byte, frame.HeaderLen6), solicit(t).ToBytes()...)
	group := frame.AllRelays()
	header := frame.Header6{DstMAC: frame.GroupMAC(group), Dst: group, SrcPort: 546, DstPort: 547}
	answered := 0
	for i := range flood {
		header.SrcMAC = frame.MAC{2, 1}
		binary.BigEndian.PutUint32(header.SrcMAC[2:], uint32(i)*2654435761)
		header.Src = frame.LinkLocal(header.SrcMAC)
		m := b[frame.HeaderLen6:]
		m[1], m[2], m[3] = byte(i>>16), byte(i>>8), byte(i)
		binary.BigEndian.PutUint32(m[14:], uint32(i)*2246822519) // within the DUID
		header.Put(b)
		l.put(t, b)
		if (i+1)%(flood/tries) == 0 {
			answered += l.tries6(t)
		}
	}
	least := tries
	if p.metric(`dhcp_relay6_drops_total{direction="to-server",listener="macvlan0",reason="overflow"}`) > 0 {
		least = tries / 2
	}
	if answered < least {
		t.Errorf("the real machine was answered %d times of %d during the flood, want %d", answered, tries, least)
	}
	if peak := p.status(t, "VmHWM"); peak > limitRSS() {
		t.Errorf("got a peak of %d KiB", peak)
	}
	testwait.Until(t, "the machine is served again", func() bool { return l.tries6(t) == 1 })
	l.smee6.Close()
	<-stop
	t.Logf("answered %d of %d during the flood, peak memory %d KiB", answered, tries, p.status(t, "VmHWM"))
}

// answer6 answers the real machine, and nobody else, until the server's socket is closed.
func (l *lab6) answer6() {
	b := make([]byte, 4096)
	for {
		n, from, err := l.smee6.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		m, err := dhcpv6.RelayMessageFromBytes(b[:n])
		if err != nil || !m.PeerAddr.Equal(clientFE80.AsSlice()) {
			continue
		}
		inner, err := m.GetInnerMessage()
		if err != nil {
			continue
		}
		reply, err := dhcpv6.NewReplyFromMessage(inner, dhcpv6.WithServerID(&dhcpv6.DUIDLL{
			HWType: 1, LinkLayerAddr: clientMAC,
		}), dhcpv6.WithIANA(dhcpv6.OptIAAddress{IPv6Addr: clientIP6.AsSlice(), ValidLifetime: time.Hour}))
		if err != nil {
			continue
		}
		if around, err := dhcpv6.NewRelayReplFromRelayForw(m, reply); err == nil {
			_, _ = l.smee6.WriteToUDPAddrPort(around.ToBytes(), from)
		}
	}
}

// tries6 has the real machine ask up to five times, as patiently as clients are, and returns 1 if it was answered.
func (l *lab6) tries6(t *testing.T) int {
	t.Helper()
	request := solicit(t)
	request.MessageType = dhcpv6.MessageTypeInformationRequest
	sent := request.ToBytes()
	b := make([]byte, 4096)
	for wait := 100 * time.Millisecond; wait < 3*time.Second; wait *= 2 { // as clients do, RFC 9915 section 15
		l.ask(t, sent)
		_ = l.lan6.SetReadDeadline(time.Now().Add(wait))
		for {
			n, _, err := l.lan6.ReadFrom(b)
			if err != nil {
				break
			}
			if datagram, fault := frame.Parse6(b[:n], frame.Verify); fault == frame.OK &&
				datagram.Dst == netip.AddrPortFrom(clientFE80, 546) {
				return 1
			}
		}
	}
	return 0
}
