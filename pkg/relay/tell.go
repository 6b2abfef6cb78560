package relay

import (
	"encoding/binary"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// teller reports messages as events, for one goroutine. It reads messages and changes none.
type teller struct {
	tell   func(*boot.Event) // nil: no events are wanted
	event  boot.Event        // memory of the event
	clock  int64             // the wall clock's nanoseconds at 0 of the relay's clock
	looked int64             // when clock was read: reading it for each event would be half of an event's cost
	waited int64             // of the reply that was decided about last: nanoseconds since its request, 0 unknown
	spare  boot.Allowance    // of messages that were dropped
}

// Lengths of texts in an event, in bytes. An event has room for all of them together.
const (
	mostClass, mostHost, mostFile, mostPlace, mostReason = 64, 48, 96, 16, 24
)

// setClock is for a batch that came at a time of the relay's clock.
func (t *teller) setClock(r *Relay, now int64) {
	if t.tell != nil && (t.clock == 0 || now-t.looked >= int64(time.Second)) {
		t.clock, t.looked = r.wall(now).UnixNano()-now, now
	}
}

// tellRequest tells of a message from a machine, or from a server on the machines' side.
func (d *worker) tellRequest(m dhcp.Message, a *arrival, to *server.Targets, now int64, drop Drop) {
	if d.tell == nil || m.Check() != dhcp.OK {
		return
	}
	from := peer{}
	switch {
	case m.Op() == dhcp.Reply:
		from = a.source
	case len(to.All) > 0:
		from = peerOf(to.All[0].Addr)
	}
	d.told(m, a.giaddr, from, d.name, now, drop)
}

// tellWaiting tells of a message from a machine that had to wait.
func (q *queue) tellWaiting(note *waiting, m dhcp.Message, to *server.Targets, now int64, drop Drop) {
	a := arrival{giaddr: note.origin.giaddr, source: note.origin.from}
	q.tellRequest(m, &a, to, now, drop)
}

// tellReply tells of a message from a server. The place is where the machine is.
func (d *worker) tellReply(m dhcp.Message, o *origin, from peer, now int64, drop Drop) {
	if d.tell == nil || m.Check() != dhcp.OK {
		return
	}
	place := unicastLabel
	if o.listener != unicast && drop != Unsolicited && drop != UntrustedServer {
		place = d.relay.listeners[o.listener].name
	}
	d.told(m, o.giaddr, from, place, now, drop)
}

// told tells of a message, which Check has found good.
func (d *worker) told(m dhcp.Message, giaddr [4]byte, server peer, place string, now int64, drop Drop) {
	if drop != None && !d.spare.Take(now) {
		return
	}
	e := &d.event
	e.Reset()
	e.Kind, e.At = boot.DHCPRequest, d.clock+now
	if m.Op() == dhcp.Reply {
		e.Kind, e.Took = boot.DHCPReply, time.Duration(d.waited)
	}
	if drop != None {
		e.Outcome = boot.Dropped
	}
	e.Relay, e.Endpoint, e.Port = boot.Bytes4(giaddr), boot.Bytes4(server.ip), server.port
	texts := describe(e, m)
	boot.SetText(e, boot.VendorClass, mostClass, texts.vendor)
	boot.SetText(e, boot.UserClass, mostClass, texts.user)
	boot.SetText(e, boot.HostName, mostHost, texts.host)
	boot.SetText(e, boot.File, mostFile, texts.file)
	boot.SetText(e, boot.Place, mostPlace, place)
	if drop != None {
		boot.SetText(e, boot.Reason, mostReason, drop.String())
	}
	d.tell(e)
}

// texts are those of a message, in its memory.
type texts struct{ vendor, user, host, file []byte }

// describe puts a message's fields and options about its machine into an event.
func describe(e *boot.Event, m dhcp.Message) (t texts) {
	if chaddr := m.Chaddr(); m.HLen() == 6 {
		e.MAC = [6]byte(chaddr[:])
	}
	e.XID, e.Secs = m.XID(), m.Secs()
	e.Client, e.Given, e.Next = boot.Bytes4(m.Ciaddr()), boot.Bytes4(m.Yiaddr()), boot.Bytes4(m.Siaddr())
	overloaded := false
	for code, value := range m.Options {
		switch code {
		case dhcp.OptionType:
			e.DHCP = first(value)
		case dhcp.OptionRequestedIP:
			e.Requested = address4(value)
		case dhcp.OptionServerID:
			e.Server = address4(value)
		case dhcp.OptionLease:
			if len(value) == 4 {
				e.Lease = binary.BigEndian.Uint32(value)
			}
		case dhcp.OptionClientArch:
			if len(value) >= 2 {
				e.HasArch, e.Arch = true, binary.BigEndian.Uint16(value)
			}
		case dhcp.OptionUUID:
			if len(value) == 17 && value[0] == 0 {
				e.UUID = [16]byte(value[1:])
			}
		case dhcp.OptionVendorClass:
			t.vendor = value
		case dhcp.OptionUserClass:
			t.user = userClass(value)
		case dhcp.OptionHostName:
			t.host = value
		case dhcp.OptionBootFile:
			t.file = untilNUL(value)
		case dhcp.OptionOverload:
			overloaded = first(value)&1 != 0
		}
	}
	if t.file == nil && !overloaded && m.Op() == dhcp.Reply {
		t.file = m.File()
	}
	return t
}

func first(value []byte) byte {
	if len(value) == 0 {
		return 0
	}
	return value[0]
}

func address4(value []byte) [16]byte {
	if len(value) != 4 {
		return [16]byte{}
	}
	return boot.Bytes4([4]byte(value))
}

// userClass is the first class of option 77, of which each stands behind its length (RFC 3004); or all of it where
// firmware, as iPXE, has left the length out.
func userClass(value []byte) []byte {
	rest := value
	for len(rest) > 0 && int(rest[0]) < len(rest) {
		rest = rest[1+int(rest[0]):]
	}
	if len(rest) > 0 || len(value) == 0 {
		return value
	}
	return value[1 : 1+int(value[0])]
}

// untilNUL is a text whose sender counts its end.
func untilNUL(value []byte) []byte {
	for i, c := range value {
		if c == 0 {
			return value[:i]
		}
	}
	return value
}

// overheard is the message in a frame that is for another station or VLAN; nil where there is none. It is reported,
// since it may explain why a machine gets no answer: its messages carry the tag of another VLAN.
func (l *vlan) overheard(i int) dhcp.Message {
	b, whole := l.RecvBatch().Packet(i)
	if l.tell == nil || !whole {
		return nil
	}
	datagram, fault := frame.Parse(b, frame.Trust)
	if fault != frame.OK {
		return nil
	}
	return dhcp.Message(datagram.Payload)
}
