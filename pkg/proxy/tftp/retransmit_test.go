package tftp

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/testwait"
)

func dataPacket(n uint16, size int) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{0, opData}, n), bytes.Repeat([]byte{byte(n)}, size)...)
}

// A block that is lost on its way to the machine comes again from the proxy, when the machine asks with its ACK of the
// block before. The server hears of it as little as Smee's does, which such an ACK keeps from sending the block again.
func TestLostBlockComesFromTheProxy(t *testing.T) {
	l := newLab(t)
	var server *net.UDPConn
	l.server.Do(t, func() (err error) {
		server, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(serverIP), Port: 69})
		return err
	})
	defer server.Close()
	f := l.front(t, Config{Pick: to(serverIP + ":69")})
	machine := l.udp(t)
	defer machine.Close()
	at := net.UDPAddrFromAddrPort(l.at(69))
	say := func(b []byte) {
		t.Helper()
		if _, err := machine.WriteTo(b, at); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(conn *net.UDPConn, want []byte) net.Addr {
		t.Helper()
		buffer := make([]byte, 2048)
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, from, err := conn.ReadFrom(buffer)
		if err != nil || !bytes.Equal(buffer[:n], want) {
			t.Fatalf("got %.20q, %v; want %.20q", buffer[:n], err, want)
		}
		return from
	}
	answer := func(to net.Addr, b []byte) {
		t.Helper()
		if _, err := server.WriteTo(b, to); err != nil {
			t.Fatal(err)
		}
		hear(machine, b)
	}
	say(rrq("f"))
	proxy := hear(server, rrq("f"))
	answer(proxy, dataPacket(1, 512))
	say(ack(1))
	hear(server, ack(1))
	answer(proxy, dataPacket(2, 512)) // which the machine did not get
	for range 2 {
		time.Sleep(askedAgain + 50*time.Millisecond)
		say(ack(1))
		hear(machine, dataPacket(2, 512))
	}
	say(ack(2))
	hear(server, ack(2)) // and not ACK 1
	answer(proxy, dataPacket(3, 10))
	time.Sleep(askedAgain + 50*time.Millisecond)
	say(ack(2))
	hear(machine, dataPacket(3, 10))
	say(ack(3))
	hear(server, ack(3))
	testwait.Until(t, "the transfer completed", func() bool { return f.outcomes(EndingCompleted) == 1 })
}

// Which ACKs ask for the newest block again.
func TestMissed(t *testing.T) {
	begin := time.Now()
	later := begin.Add(askedAgain)
	newRead := func(blocks int, options ...string) *transfer {
		b := rrq("f", options...)
		r, _ := parseRequest(b)
		tr := newTransfer(b, r)
		if len(options) > 0 {
			tr.observe(opOack, append([]byte{0, opOack}, options[0]+"\x00"+options[1]+"\x00"...))
			tr.observe(opAck, ack(0))
		}
		for n := range blocks {
			d := dataPacket(uint16(n+1), tr.agreed.blockSize)
			tr.observe(opData, d)
			tr.keep(d, begin)
			if n+1 < blocks {
				tr.observe(opAck, ack(uint16(n+1)))
			}
		}
		return &tr
	}
	for name, test := range map[string]struct {
		transfer *transfer
		ack      uint16
		at       time.Time
		want     bool
	}{
		"the one before":          {newRead(3), 2, later, true},
		"its own":                 {newRead(3), 3, later, false},
		"an older one":            {newRead(3), 1, later, false},
		"the second of a pair":    {newRead(3), 2, later.Add(-time.Millisecond), false},
		"of the options":          {newRead(1, "blksize", "1468"), 0, later, true},
		"nothing came yet":        {newRead(0), 0, later, false},
		"number 65535 goes round": {newRead(65536), 65535, later, true},
		"blocks are windows":      {newRead(3, "windowsize", "4"), 2, later, false},
		"too long to be kept":     {newRead(3, "blksize", "8192"), 2, later, false},
	} {
		if got := test.transfer.missed(opAck, ack(test.ack), test.at); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	ended := newRead(3)
	ended.ended = true
	if ended.missed(opAck, ack(2), later) {
		t.Error("of a transfer that has ended")
	}
}
