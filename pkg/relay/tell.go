package relay

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/iana"

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
	e.At = w.teller.clock + now
	if drop != None {
		e.Outcome = boot.Dropped
	}
	if server.IsValid() {
		e.Endpoint, e.Port = server.Addr().As16(), server.Port()
	}
	w.relay.describe(e, s)
	boot.SetText(e, boot.Where, maxWhere, where)
	if drop != None {
		boot.SetText(e, boot.Reason, maxReason, drop.String())
	}
	w.teller.emit(e)
}

// describe puts what a message says into an event.
func (r *Relay) describe(e *boot.Event, s *speech) {
	e.Kind, e.V6, e.MAC, e.Client, e.Relay = boot.DHCPRequest, r.config.IPv6, s.mac, s.client, s.relay
	if s.fromServer {
		e.Kind, e.Took = boot.DHCPReply, s.took
	}
	texts := r.family.describeEvent(e, s.message)
	boot.SetText(e, boot.VendorClass, maxClass, texts.vendor)
	boot.SetText(e, boot.UserClass, maxClass, texts.user)
	boot.SetText(e, boot.HostName, maxHost, texts.host)
	boot.SetText(e, boot.File, maxFile, texts.file)
}

// logged logs the event of a message that was relayed, and emits it. It is for the level debug, and may allocate.
func (r *Relay) logged(e *boot.Event) {
	switch {
	case e.Outcome == boot.Dropped: // worker.drop has logged it
	case e.Kind == boot.DHCPRequest:
		r.logger.Debug("relayed request", fields(e)...)
	default:
		r.logger.Debug("relayed reply", fields(e)...)
	}
	if r.config.Event != nil {
		r.config.Event(e)
	}
}

// said describes a server's message that answers nothing, for the log.
func (r *Relay) said(m []byte, from netip.Addr) []any {
	var e boot.Event
	if s, ok := r.family.replied(m, &origin{}); ok {
		r.describe(&e, &s)
	}
	return append([]any{"source", from.String()}, fields(&e)...)
}

// fields are what an event says of a message, for the log.
func fields(e *boot.Event) (all []any) {
	add := func(key, value string) {
		if value != "" {
			all = append(all, key, value)
		}
	}
	add("listener", string(e.Text(boot.Where)))
	add("type", e.TypeName())
	add("xid", fmt.Sprintf("%06x", e.XID))
	if e.MAC != ([6]byte{}) {
		add("mac", net.HardwareAddr(e.MAC[:]).String())
	}
	for _, each := range []struct {
		key string
		b   [16]byte
	}{
		{"client", e.Client}, {"relay_agent", e.Relay}, {"address", e.Given}, {"next_server", e.Next},
		{"endpoint", e.Endpoint},
	} {
		if address := boot.Addr(each.b); address.IsValid() {
			add(each.key, address.String())
		}
	}
	if e.HasArch {
		add("arch", iana.Arch(e.Arch).String())
	}
	add("vendor_class", string(e.Text(boot.VendorClass)))
	add("user_class", string(e.Text(boot.UserClass)))
	add("boot_file", string(e.Text(boot.File)))
	return all
}
