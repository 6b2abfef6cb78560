package journal

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// facts are what was heard in a boot, as far as causes need it: most of them in its present attempt. Only the methods
// in this file change them.
type facts struct {
	first, ipxe string // what the machine said of itself in its first message, and as iPXE
	firmware    bool   // its firmware or iPXE was heard: it boots from the network
	fromDisk    bool   // it runs a system that did not come from the network

	system   string // vendor class of the first system that asked
	systemAt int64
	stage    Step   // of DHCP: who asks at present
	asks     [2]ask // DHCP by IPv4 and by IPv6, since the stage began
	declines int
	declined netip.Addr
	strays   int    // messages for it that only make sense if its DISCOVERs go elsewhere
	stray    string // the reason of the last one

	failed   failure // the last thing that went wrong, until something of the same step or a later one goes right
	returned failure // loader after which the firmware asked again
	loads    int     // loaders served since a script was
	ipxeRuns bool    // iPXE runs: it asked for what only iPXE asks for
	kernel   bool    // a kernel was served
	redirect redirect
	says     saying // an error that the machine tells of itself
	agent    agent
}

// agent is how the agent fares. Over TCP its connection is all that is seen; with gRPC, calls are.
type agent struct {
	streams  int // open
	short    int // ended within moments, in a row
	calls    bool
	since    int64 // when it first asked for work, or connected
	worked   bool  // it fetched what an action needs
	reported bool  // it reported on an action
	finished int64 // when its work seemed done; 0 if it goes on
	called   int64 // its last call
	polls    polls
}

// polls are how an agent is answered whose calls are not seen: one that asks again and again, and gets no work, is sent
// little, and about as much each time.
type polls struct {
	connections int
	at          int64   // when it was last told how much had gone to the agent
	bytes       uint64  // by then
	rate        float64 // the least, in bytes a second
	varied      bool    // it was sent more, or nothing for some time: it works
}

// pollPause is how long an agent that asks for work is quiet between two questions at most, and pollRate how much it is
// sent at least, in bytes a second: HTTP/2's pings, which say nothing, are less.
const (
	pollPause = 15 * time.Second
	pollRate  = 3
)

func (p *polls) tell(e *boot.Event) {
	if took := e.At - p.at; p.at != 0 && took > 0 {
		rate := float64(e.Bytes-min(p.bytes, e.Bytes)) / time.Duration(took).Seconds()
		p.varied = p.varied || took > int64(pollPause) || p.rate > 0 && rate > 4*p.rate
		if p.rate == 0 || rate < p.rate {
			p.rate = rate
		}
	}
	p.at, p.bytes = e.At, e.Bytes
}

// vain reports whether an agent asks for work all the time, and gets none.
func (p *polls) vain(now int64) bool {
	return p.connections == 1 && p.rate > pollRate && !p.varied && now-p.at <= int64(pollPause)
}

// saying is a line of the machine about itself.
type saying struct {
	kind uint8
	at   int64
	text string
}

const (
	loaderSays = 1 + iota
	kernelSays
)

func (s *saying) is(kind uint8) bool { return s.kind == kind }

// redirect is an answer that sent the machine elsewhere, until anything else is heard of what it loads.
type redirect struct {
	at             int64
	status         uint16
	file, location string
}

// redirected takes note of one.
func (f *facts) redirected(e *boot.Event, v verdict) {
	switch location := text(e, boot.Message, maxText); {
	case e.Kind == boot.HTTP && e.Status/100 == 3 && location != "":
		f.redirect = redirect{e.At, e.Status, text(e, boot.File, maxFile), location}
	case v != neutral:
		f.redirect = redirect{}
	}
}

// failure is something that went wrong, as a cause will tell it.
type failure struct {
	step     Step
	at       int64
	took     time.Duration
	kind     boot.Kind
	outcome  boot.Outcome
	status   uint16
	asked    uint16 // port of the proxy
	file     string
	dir      string // with its route
	message  string
	reason   string
	route    string
	from     netip.AddrPort
	bytes    uint64
	expected uint64
	resent   uint32
	block    uint16
	count    int

	byMachine bool // the machine broke off
	byUs      bool // a timer of this service's ended it
}

// ask is how a DHCP exchange stands.
type ask struct {
	asked     int    // DISCOVERs and REQUESTs since the last reply
	discovers int    // DISCOVERs in all
	opened    int64  // the first of those asked
	last      int64  // the last message of the machine
	drop      string // why the relay dropped the last of them; empty: it did not
	lost      string // why the relay dropped the last reply; empty: it did not
	offers    int    // since the last REQUEST
	offered   int64  // the last offer
	proxy     bool   // an offer had no address: another server is expected to give it
	none      bool   // the same of DHCPv6, where it means that the server has none for the machine
	servers   []netip.Addr
	chosen    netip.Addr // server that a REQUEST named and that offered nothing here
	rogue     netip.Addr // server that answered on the machine's side of the relay
	requests  int
	naks      int
	acked     int64
	address   netip.Addr
	file      string
	next      netip.Addr
	server    netip.Addr
	relay     netip.Addr     // giaddr of a router before us
	to        netip.AddrPort // server that was asked
}

// ask is the exchange of a version of DHCP.
func (f *facts) ask(v6 bool) *ask {
	if v6 {
		return &f.asks[1]
	}
	return &f.asks[0]
}

// leased is the exchange that gave the machine its address; nil if there is none.
func (f *facts) leased() *ask {
	for i := range f.asks {
		if f.asks[i].acked > 0 {
			return &f.asks[i]
		}
	}
	return nil
}

// begins notes how the machine's firmware, or iPXE in its place, speaks.
func (f *facts) begins(signature string, ipxe bool) {
	f.firmware = true
	f.first = cmp.Or(f.first, signature)
	if ipxe {
		f.ipxe = signature
	}
}

// setStage begins another DHCP exchange where another program, or another interface, asks.
func (f *facts) setStage(s Step) {
	f.stage = s
	f.asks = [2]ask{}
	f.strays = 0
	if f.failed.step.order() < s.order() {
		f.failed = failure{}
	}
	if f.says.is(loaderSays) && s == OSDHCP {
		f.says = saying{}
	}
}

// again begins another attempt. The loader, where one was served whole, brought the firmware back.
func (f *facts) again(loader *step, at int64) {
	if loader != nil && loader.result == OK {
		f.returned = failure{
			step: Loader, at: at, file: loader.text, from: loader.from, count: f.returned.count + 1,
			took: time.Duration(at - loader.end),
		}
	}
	f.stage, f.ipxeRuns, f.says, f.redirect = "", false, saying{}, redirect{}
}

// request takes note of a machine's DHCP message that the relay passed on or dropped.
func (f *facts) request(e *boot.Event, r role, served func(netip.Addr) bool) {
	a := f.ask(e.V6)
	if a.asked++; a.asked == 1 {
		a.opened = e.At
	}
	a.last = e.At
	if to := boot.Addr(e.Endpoint); to.IsValid() {
		a.to = netip.AddrPortFrom(to, e.Port)
	}
	a.relay = boot.Addr(e.Relay)
	if e.Outcome == boot.Dropped {
		if a.drop = text(e, boot.Reason, maxName); a.drop == boot.ReasonOtherHost {
			f.strays++
			f.stray = a.drop
		}
		return
	}
	a.drop = ""
	switch r {
	case discover:
		a.discovers++
		a.chosen = netip.Addr{}
		a.acked = 0
	case request:
		a.requests++
		a.offers = 0
		if server := boot.Addr(e.Server); server.IsValid() && !slices.Contains(a.servers, server) && !served(server) {
			a.chosen = server
		}
	}
}

// decline takes note that the machine does not want its address.
func (f *facts) decline(e *boot.Event) {
	f.declines++
	if f.declined = boot.Addr(e.Requested); !f.declined.IsValid() {
		if a := f.ask(e.V6); a.address.IsValid() {
			f.declined = a.address
		} else if f.declined = boot.Addr(e.Client); !f.declined.IsValid() {
			f.declined = boot.Addr(e.Given)
		}
	}
}

// reply takes note of a server's message that reached the machine.
func (f *facts) reply(e *boot.Event, r role) {
	a := f.ask(e.V6)
	a.lost = ""
	a.asked = 0
	a.heard(e)
	given := boot.Addr(e.Given)
	switch r {
	case offer:
		a.offers++
		a.offered = e.At
		a.proxy = a.proxy || !e.V6 && !given.IsValid()
		a.none = e.V6 && !given.IsValid() && len(e.Text(boot.File)) == 0
	case ack:
		a.acked, a.offers, a.naks = e.At, 0, 0
		a.chosen = netip.Addr{}
		if given.IsValid() {
			a.address = given
		}
	case nak:
		a.naks++
	}
}

// replyDropped takes note of why a server's message did not reach the machine.
func (f *facts) replyDropped(e *boot.Event, r role) {
	a := f.ask(e.V6)
	if string(e.Text(boot.Reason)) == boot.ReasonReplyFromClient {
		if a.rogue = boot.Addr(e.Server); !a.rogue.IsValid() {
			a.rogue = boot.Addr(e.Endpoint)
		}
		if r == ack {
			a.chosen = a.rogue
		}
		return
	}
	a.lost = text(e, boot.Reason, maxName)
	if a.asked == 0 || a.lost == boot.ReasonUnsolicited {
		f.strays++
		f.stray = a.lost
	}
}

// heard notes the server of a message that reached the machine, and the file that it names.
func (a *ask) heard(e *boot.Event) {
	a.server, a.next = boot.Addr(e.Server), boot.Addr(e.Next)
	if !a.server.IsValid() { // DHCPv6 servers are known by a DUID.
		a.server = boot.Addr(e.Endpoint)
	}
	if a.server.IsValid() && !slices.Contains(a.servers, a.server) && len(a.servers) < maxServers {
		a.servers = append(a.servers, a.server)
	}
	if file := text(e, boot.File, maxFile); file != "" {
		a.file = file
	}
}

// confirmsAnother tells whether an ACK of a server is about an address of its own, while the machine asked for that of
// another.
func (a *ask) confirmsAnother(given, server netip.Addr) bool {
	return a.chosen.IsValid() && !a.proxy && given.IsValid() && server.IsValid() && server != a.chosen
}

// alone tells whether a machine asks again and again since a time.
func (a *ask) alone(since int64) bool { return a.asked > 1 && a.acked == 0 && a.opened >= since }

// progress takes note that a step goes well, or goes on.
func (f *facts) progress(s Step, e *boot.Event) {
	g := &f.failed
	same := g.step == s && (s != Agent || e.Outcome != boot.Began)
	later := s != Other && g.step.order() < s.order() && (g.step != Metadata || g.outcome != boot.NoServer)
	if same || later || g.step == Files && s == Agent {
		*g = failure{}
	}
	if s != Other && (f.says.is(loaderSays) || s != Syslog) {
		f.says = saying{}
	}
	switch s {
	case Loader:
		f.loads++
	case Script:
		f.loads = 0
		f.returned = failure{}
	case Kernel:
		f.kernel = true
	}
	if e.Outcome == boot.Began {
		return
	}
	if s == Files && f.agent.since > 0 {
		f.agent.worked = true
	}
}

// fail keeps what went wrong.
func (f *facts) fail(s Step, e *boot.Event) {
	g := failure{
		step: s, at: e.At, took: e.Took, kind: e.Kind, outcome: e.Outcome, status: e.Status, asked: e.AskedPort,
		file: text(e, boot.File, maxFile), message: text(e, boot.Message, maxText), reason: text(e, boot.Reason, maxName),
		route: text(e, boot.Where, maxName), from: addrPort(e), bytes: e.Bytes, expected: e.Expected, resent: e.Resent,
		block: e.Block, count: 1,
	}
	g.dir = directory(g.route, g.file)
	if e.Outcome == boot.Refused && g.reason != boot.ReasonHandshake {
		g.message = g.reason
	}
	g.byMachine = fromClient(e) || g.reason == boot.ReasonClientGone || strings.HasPrefix(g.message, "client: ")
	g.byUs = isOurTimer(g.reason)
	if old := &f.failed; old.step == s && old.file == g.file && old.outcome == g.outcome && old.status == g.status {
		g.count = old.count + 1
		g.at = old.at // The wait for another attempt does not begin again with each.
	} else if old.tls() && s == Agent && e.Outcome != boot.Refused {
		return // The connection's end says less than its handshake.
	}
	f.failed = g
}

// serve takes note of how the agent fares.
// last is the machine's last sign.
func (a *agent) serve(e *boot.Event, v verdict, last int64) {
	const moment = 2e9
	call := string(e.Text(boot.File))
	a.called = e.At
	a.since = cmp.Or(a.since, e.At)
	switch {
	case v == goesOn && call == "" && e.Took > 0:
		a.polls.tell(e)
	case v == goesOn && call == "":
		a.polls.connections++
		a.streams++
		a.finished = 0
	case v == goesOn:
		a.calls = true
	case call == "":
		a.streams = max(0, a.streams-1)
		if own := isOwn(e); own {
			return
		}
		const answer = 256 // bytes: a refusal has fewer
		served := a.worked || a.reported || e.Outcome == boot.Done && e.Bytes >= answer
		if int64(e.Took) < moment && !served {
			a.short++
			return
		}
		a.short = 0
		a.finished = last
		if a.streams > 0 {
			a.finished = 0
		}
	default:
		a.calls = true
		if v != good {
			return
		}
		if containsFold(call, "Report") || containsFold(call, "PublishEvent") {
			a.reported = true
			a.finished = e.At
		}
	}
}

// noteLine takes note of what the machine says of itself. It returns false for a line of iPXE's, which says nothing of
// the system.
func (f *facts) noteLine(l *line) (system bool) {
	ipxe := l.tag == "ipxe" || strings.Contains(l.text, " ipxe: ") || strings.Contains(l.text, "https://ipxe.org/")
	switch {
	case strings.Contains(l.text, "[TXE: ") || strings.Contains(l.text, "[RXE: "): // what its link has counted so far
	case strings.HasPrefix(l.text, autoexec): // which is missing nearly everywhere
	case strings.Contains(l.text, "ipxe.org/"):
		if f.says.kind == 0 || l.at-f.says.at > 10*aSecond { // of several, the first names the file
			f.says = saying{loaderSays, l.at, l.text}
		}
	case strings.Contains(l.text, "Kernel panic - not syncing"):
		f.says = saying{kernelSays, l.at, l.text}
	}
	return !ipxe
}
