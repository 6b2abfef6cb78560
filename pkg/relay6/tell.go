package relay6

import (
	"encoding/binary"
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// teller reports messages as events, for one goroutine. It reads messages and changes none.
type teller struct {
	tell   func(*boot.Event) // nil: no events are wanted
	event  boot.Event        // memory of the event
	clock  int64             // the wall clock's nanoseconds at 0 of the relay's clock, as of the batch
	waited int64             // of the reply that was decided about last: nanoseconds since its request, 0 unknown
	spare  boot.Allowance    // of messages that were dropped
}

// Lengths of texts in an event, in bytes. An event has room for all of them together.
const (
	mostClass, mostFile, mostPlace, mostReason = 64, 128, 16, 24
)

// setClock is for a batch that came at a time of the relay's clock.
func (t *teller) setClock(r *Relay, now int64) {
	if t.tell != nil {
		t.clock = r.wall(now).UnixNano() - now
	}
}

// tellRequest tells of a message from a machine, or from a server on the machines' side, as it arrived.
func (d *worker) tellRequest(m dhcp6.Message, a *arrival, to *server.Targets, now int64, drop Drop) {
	if d.tell == nil || m.Check(dhcp6.HopLimit) != dhcp6.OK {
		return
	}
	client, around := m.Innermost()
	from := netip.AddrPort{}
	switch {
	case client.Type().FromServer():
		from = netip.AddrPortFrom(netip.AddrFrom16(a.source), a.port)
	case len(to.All) > 0:
		from = to.All[0].Addr
	}
	mac, source, agent := a.mac, a.source, [16]byte{}
	if around != nil {
		mac, _ = around.ClientLinkAddr()
		source, agent = around.Peer(), a.source
	}
	d.told(client, mac, source, agent, from, d.name, now, drop)
}

// tellWaiting tells of a message that had to wait, as it was wrapped.
func (q *queue) tellWaiting(note *waiting, m dhcp6.Message, to *server.Targets, now int64, drop Drop) {
	if q.tell == nil {
		return
	}
	a := arrival{source: note.key.peer, mac: note.origin.mac}
	q.tellRequest(m.Inner(), &a, to, now, drop)
}

// tellReply tells of a message from a server. The place is where the machine is.
func (d *worker) tellReply(m dhcp6.Message, o *origin, from netip.AddrPort, now int64, drop Drop) {
	if d.tell == nil || m.Check(dhcp6.HopLimit+1) != dhcp6.OK {
		return
	}
	client, around := m.Innermost()
	if around == nil {
		return
	}
	place := unicastLabel
	if drop == None || drop == TooLong || drop == ListenerDown {
		place = d.relay.nameOf(o.listener)
	}
	agent := [16]byte{}
	if m.Inner().IsRelay() {
		agent = m.Peer()
	}
	d.told(client, o.owner, around.Peer(), agent, from, place, now, drop)
}

// told tells of a machine's or server's message, which Check has found good.
func (d *worker) told(
	m dhcp6.Message, mac frame.MAC, source, agent [16]byte, endpoint netip.AddrPort, place string, now int64, drop Drop,
) {
	if drop != None && !d.spare.Take(now) {
		return
	}
	e := &d.event
	e.Reset()
	e.Kind, e.V6, e.At = boot.DHCPRequest, true, d.clock+now
	if m.Type().FromServer() {
		e.Kind, e.Took = boot.DHCPReply, time.Duration(d.waited)
	}
	if drop != None {
		e.Outcome = boot.Dropped
	}
	e.MAC, e.Client, e.Relay = mac, source, agent
	if endpoint.IsValid() {
		e.Endpoint, e.Port = endpoint.Addr().As16(), endpoint.Port()
	}
	texts := describe(e, m)
	boot.SetText(e, boot.VendorClass, mostClass, texts.vendor)
	boot.SetText(e, boot.UserClass, mostClass, texts.user)
	boot.SetText(e, boot.File, mostFile, texts.file)
	boot.SetText(e, boot.Place, mostPlace, place)
	if drop != None {
		boot.SetText(e, boot.Reason, mostReason, drop.String())
	}
	d.tell(e)
}

// texts are those of a message, in its memory.
type texts struct{ vendor, user, file []byte }

// duidUUID is the type of a client identifier that is a UUID (RFC 6355).
const duidUUID = 4

// describe puts a message's options about its machine into an event.
func describe(e *boot.Event, m dhcp6.Message) (t texts) {
	e.DHCP, e.XID = uint8(m.Type()), m.XID()
	for code, value := range m.Options {
		switch code {
		case dhcp6.OptionClientID:
			if len(value) == 2+16 && binary.BigEndian.Uint16(value) == duidUUID {
				e.UUID = [16]byte(value[2:])
			}
		case dhcp6.OptionElapsedTime:
			if len(value) == 2 {
				e.Secs = binary.BigEndian.Uint16(value) / 100
			}
		case dhcp6.OptionClientArch:
			if len(value) >= 2 {
				e.HasArch, e.Arch = true, binary.BigEndian.Uint16(value)
			}
		case dhcp6.OptionVendorClass:
			if len(value) > 4 {
				t.vendor = firstClass(value[4:]) // behind the enterprise number
			}
		case dhcp6.OptionUserClass:
			t.user = firstClass(value)
		case dhcp6.OptionBootFileURL:
			t.file = value
		}
	}
	if address, lease, found := m.Granted(); found {
		e.Given, e.Lease = address, lease
	}
	return t
}

// firstClass is the first of a list of classes, each behind its length (RFC 9915 sections 21.15 and 21.16).
func firstClass(b []byte) []byte {
	if len(b) < 2 {
		return nil
	}
	n := int(binary.BigEndian.Uint16(b))
	return b[2:min(len(b), 2+n)]
}
