package relay

import (
	"bytes"
	"testing"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/mmsg"
)

// FuzzRequest is a message of any bytes, of a machine or a trusted agent: never a panic, it is relayed unchanged or not
// at all, and its answer finds the way back.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(message6(dhcp6.Solicit)), byte(0), uint16(546))
	f.Add([]byte(nest(3, message6(dhcp6.Request))), byte(1), uint16(547))
	f.Add([]byte(nest(33, message6(dhcp6.Request))), byte(3), uint16(5470))
	f.Add([]byte(around(dhcp6.RelayForward, 0, agentLink, clientIP, message6(dhcp6.Renew), dhcp6.AppendRelayPort(nil, 0)...)),
		byte(3), uint16(5470))
	f.Add([]byte(around(dhcp6.RelayReply, 0, ourLink, clientIP, message6(dhcp6.Reply))), byte(1), uint16(547))
	f.Add([]byte(message6(dhcp6.Solicit, 0, 8, 255, 255)), byte(0), uint16(546))
	benches := [2]*bench6{
		newBench6(f, func(c *Config) { c.Pending, c.NewcomerRate = 16, -1 }),
		newBench6(f, func(c *Config) {
			c.Pending, c.NewcomerRate, c.TokenKey = 16, -1, []byte("0123456789abcdef")
		}),
	}
	f.Fuzz(func(t *testing.T, m []byte, flags byte, port uint16) {
		if len(m) > mmsg.Received {
			return
		}
		b := benches[flags>>7]
		a := b.heard
		if flags&1 != 0 {
			a.source = peer{agentIP, port}
		}
		if flags&2 != 0 {
			a.listener, a.link = unicast, nil
		}
		got, drop := b.hear(m, &a)
		if drop != None {
			_ = drop.String()
			return
		}
		if !bytes.Equal(got.Inner(), m) || got.Peer() != a.source.ip {
			t.Fatal("the message changed")
		}
		back := append(dhcp6.Message{}, got...)
		level := back
		for level.IsRelay() {
			level[0] = byte(dhcp6.RelayReply)
			level = level.Inner()
		}
		level[0] = byte(dhcp6.Reply)
		o, drop := reply6(b.worker, back, serverIP, b.targets, b.now())
		if drop != None {
			t.Fatalf("the answer is dropped: %v", drop)
		}
		if o.listener != a.listener || o.port == 0 {
			t.Fatalf("the answer goes to %+v", o)
		}
	})
}

// FuzzReply6 is anything that a server may send, asked for or not.
func FuzzReply6(f *testing.F) {
	f.Add([]byte(around(dhcp6.RelayReply, 0, ourLink, clientIP, message6(dhcp6.Advertise))), false)
	f.Add([]byte(around(dhcp6.RelayReply, 0, ourLink, clientIP, message6(dhcp6.Reconfigure))), true)
	f.Add([]byte(around(dhcp6.RelayReply, 1, ourLink, agentIP, around(dhcp6.RelayReply, 0, agentLink, clientIP, message6(dhcp6.Reply)))), true)
	f.Add([]byte(around(dhcp6.RelayReply, 0, ourLink, clientIP, message6(dhcp6.Reply),
		dhcp6.Append(nil, dhcp6.OptionInterfaceID, make([]byte, 8+tokenLen6))...)), true)
	b := newBench6(f, func(c *Config) { c.Pending, c.TokenKey = 16, []byte("0123456789abcdef") })
	plain := newBench6(f, func(c *Config) { c.Pending = 16 })
	f.Fuzz(func(t *testing.T, m []byte, token bool) {
		if len(m) == 0 || len(m) > mmsg.Received {
			return
		}
		b := b
		if !token {
			b = plain
			if client, peer, ok := transactionOf(m); ok {
				b.pending.Remember(b.keyOf6(client, peer), origin{origin6: origin6{link: ourLink}}, 0)
			}
		}
		slot := make([]byte, headroom6+len(m))
		copy(slot[headroom6:], m)
		reply := dhcp6.Message(slot[headroom6:])
		o, drop := reply6(b.worker, reply, serverIP, b.targets, 0)
		if drop != None {
			return
		}
		if o.listener != 0 {
			t.Fatalf("a reply goes to a listener that is not there: %+v", o)
		}
		start, end := reply.InnerAt()
		whole := slot[headroom6+start-frame.HeaderLen6 : headroom6+end]
		header := frame.Header6{DstMAC: macOf6(reply.Peer()), Dst: reply.Peer(), SrcPort: serverPort6, DstPort: clientPort6}
		header.Put(whole)
		got, fault := frame.Parse6(whole, frame.Verify)
		if fault != frame.OK || !bytes.Equal(got.Payload, m[start:end]) {
			t.Fatalf("the frame is bad: %v", fault)
		}
	})
}

// transactionOf is what a reply of any bytes claims to answer.
func transactionOf(m dhcp6.Message) (client dhcp6.Message, peer [16]byte, ok bool) {
	if m.Check(dhcp6.HopLimit+1) != dhcp6.OK || !m.IsRelay() {
		return nil, peer, false
	}
	client, _ = m.Innermost()
	return client, m.Peer(), true
}
