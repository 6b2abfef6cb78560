package relay

import (
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// teller reports messages as events, for one goroutine. It reads messages and changes none.
type teller struct {
	emit      func(*boot.Event) // nil: no events are wanted
	event     boot.Event        // memory of the event
	clock     int64             // the wall clock's nanoseconds at 0 of the relay's clock
	looked    int64             // when clock was read: reading it for each event would be half of an event's cost
	allowance boot.Allowance    // bounds the events of messages that were dropped
}

// speech is what a message says, and of whom.
type speech struct {
	message    []byte // the machine's or the server's, without what relay agents put around it
	fromServer bool
	mac        [6]byte
	client     [16]byte // the machine's address of DHCPv6
	relay      [16]byte // another relay agent
	took       time.Duration
}

// texts are those of a message, in its memory.
type texts struct{ vendor, user, host, file []byte }

// Lengths of texts in an event, in bytes. An event has room for all of them together.
const (
	maxClass, maxHost, maxFile, maxWhere, maxReason = 64, 48, 128, 16, 24
)

// tellRequest tells of a message from a machine, or from a server on the machines' side, as it arrived.
func (w *worker) tellRequest(a *arrival, targets *server.Targets, now int64, drop Drop) {
	if w.teller.emit == nil || len(a.b) <= a.at {
		return
	}
	s, ok := w.relay.family.spoken(a.b[a.at:], a)
	if !ok {
		return
	}
	endpoint := netip.AddrPort{}
	switch {
	case s.fromServer:
		endpoint = a.source.addrPort()
	case len(targets.All) > 0:
		endpoint = targets.All[0].Addr
	}
	w.hand(&s, endpoint, w.name, now, drop)
}

// tellReply tells of a message from a server. It tells the listener's name, too: that of the machine's link.
func (w *worker) tellReply(out *back, from netip.AddrPort, now int64, drop Drop) {
	if w.teller.emit == nil {
		return
	}
	s, ok := w.relay.family.replied(out.message, &out.origin)
	if !ok {
		return
	}
	where := unicastLabel
	if out.found {
		where = w.relay.nameOf(out.listener)
	}
	s.took = time.Duration(out.waited)
	w.hand(&s, from, where, now, drop)
}

// hand makes the event of a machine's or server's message, and emits it.
func (w *worker) hand(s *speech, server netip.AddrPort, where string, now int64, drop Drop) {
	if drop != None && !w.teller.allowance.Take(now) {
		return
	}
	if t := &w.teller; t.clock == 0 || now-t.looked >= int64(time.Second) {
		t.clock, t.looked = w.relay.wall(now).UnixNano()-now, now
	}
	e := &w.event
	e.Reset()
	e.Kind, e.V6, e.At = boot.DHCPRequest, w.relay.config.IPv6, w.teller.clock+now
	if s.fromServer {
		e.Kind, e.Took = boot.DHCPReply, s.took
	}
	if drop != None {
		e.Outcome = boot.Dropped
	}
	e.MAC, e.Client, e.Relay = s.mac, s.client, s.relay
	if server.IsValid() {
		e.Endpoint, e.Port = server.Addr().As16(), server.Port()
	}
	texts := w.relay.family.describeEvent(e, s.message)
	boot.SetText(e, boot.VendorClass, maxClass, texts.vendor)
	boot.SetText(e, boot.UserClass, maxClass, texts.user)
	boot.SetText(e, boot.HostName, maxHost, texts.host)
	boot.SetText(e, boot.File, maxFile, texts.file)
	boot.SetText(e, boot.Where, maxWhere, where)
	if drop != None {
		boot.SetText(e, boot.Reason, maxReason, drop.String())
	}
	w.teller.emit(e)
}
