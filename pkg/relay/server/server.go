package server

import (
	"encoding/binary"
	"math/bits"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Given is what a server has given a client. A greater one includes the lesser.
type Given uint8

// What may be given.
const (
	Nothing Given = iota
	Offer         // by an OFFER, an ADVERTISE
	Lease         // by an ACK, a REPLY

	answerBits = 3
)

// Machine is the tag of a client for the servers' health. Its firmware is another client than its system, since a
// server of boot files may know the former only.
func Machine(client uint64, firmware bool) uint64 {
	if firmware && client != 0 {
		return ^client
	}
	return client
}

// knownMachines is how many machines a server is remembered to have answered, at most.
const knownMachines = 8192

// Server is one DHCP server of the settings.
type Server struct {
	name string
	host string
	port uint16

	// known are the addresses of the last good lookup; requests go to known[next]. These two, detour, dead and last
	// belong to the goroutine of the pool.
	known  []netip.Addr
	next   int
	detour bool
	dead   bool
	last   int64 // the value of seen when the server was taken for dead

	unanswered atomic.Int64 // requests since the last reply
	since      atomic.Int64 // when the first of those was sent
	seen       atomic.Int64 // when the last reply came; 0: never
	told       bool         // that it never answered

	// Of unanswered: the requests of machines that this server has answered before, none more than owedGap after the one
	// before it; when the first and the last of them were sent; and the machine that sent the last one.
	owed      atomic.Int64
	owedSince atomic.Int64
	owedLast  atomic.Int64
	owedTo    atomic.Uint64
	// Of unanswered, within a minute: the DISCOVERs of other machines, a bit for some of these, and when the first was
	// sent.
	strangers      atomic.Int64
	different      atomic.Uint64
	strangersSince atomic.Int64
	// machines are the tags of those that it has answered, with the answer in the lowest bits. A machine takes the place
	// of another one at times.
	machines [knownMachines]atomic.Uint64

	requests, replies prometheus.Counter
	up, lastSeen      prometheus.Gauge
}

func newServer(m *Metrics, name, host string, port uint16) *Server {
	s := &Server{
		name: name, host: host, port: port,
		requests: m.requests.WithLabelValues(name), replies: m.replies.WithLabelValues(name),
		up: m.up.WithLabelValues(name), lastSeen: m.seen.WithLabelValues(name),
	}
	s.up.Set(1)
	return s
}

// Asked notes a request. The silence of a server to one that has to be answered means something where it has answered
// the same machine before: to machines that it does not know a good server is silent, too.
func (s *Server) Asked(now int64, r *Request) {
	s.requests.Inc()
	if !r.AnswerExpected {
		return
	}
	if s.unanswered.Add(1) == 1 {
		s.since.Store(now)
	}
	switch {
	case r.GivenBefore == Nothing || r.Machine == 0:
	case s.knows(r.Machine, r.GivenBefore):
		if now-s.owedLast.Swap(now) > owedGap.Nanoseconds() {
			s.owed.Store(0)
		}
		if s.owed.Add(1) == 1 {
			s.owedSince.Store(now)
		}
		s.owedTo.Store(uint64(r.MAC[0])<<40 | uint64(binary.BigEndian.Uint32(r.MAC[1:]))<<8 | uint64(r.MAC[5]))
	case r.GivenBefore == Offer:
		if now-s.strangersSince.Load() > strangersFor.Nanoseconds() {
			s.strangersSince.Store(now)
			s.strangers.Store(0)
			s.different.Store(0)
		}
		s.strangers.Add(1)
		if bit := uint64(1) << ((r.Machine >> answerBits) % 64); s.different.Load()&bit == 0 {
			s.different.Or(bit)
		}
	}
}

// knows tells whether the server has given a machine something before.
func (s *Server) knows(machine uint64, least Given) bool {
	known := s.machines[(machine>>answerBits)%knownMachines].Load()
	return known>>answerBits == machine>>answerBits && Given(known&(1<<answerBits-1)) >= least
}

// learn notes what the server has given a machine.
func (s *Server) learn(machine uint64, given Given) {
	if given != Nothing && machine != 0 && !s.knows(machine, given) {
		s.machines[(machine>>answerBits)%knownMachines].Store((machine>>answerBits)<<answerBits | uint64(given))
	}
}

// Unanswered is how many requests were sent since the last reply.
func (s *Server) Unanswered() int64 { return s.unanswered.Load() }

func (s *Server) answered(now int64) {
	s.replies.Inc()
	s.forget()
	s.seen.Store(now)
}

func (s *Server) forget() {
	clearIfSet(&s.unanswered)
	if clearIfSet(&s.owed) {
		s.owedTo.Store(0)
	}
	if clearIfSet(&s.strangers) {
		s.different.Store(0)
	}
}

// clearIfSet stores 0 where that is not there: it is done for each packet, and to look costs less.
func clearIfSet(n *atomic.Int64) bool {
	set := n.Load() != 0
	if set {
		n.Store(0)
	}
	return set
}

// silent tells whether the server is taken for dead, since it leaves machines without an answer that it has answered
// before.
func (s *Server) silent(now int64, deadAfter int) bool {
	owed, since := s.owed.Load(), now-s.owedSince.Load()
	return owed >= int64(deadAfter) && since >= deadFor.Nanoseconds() ||
		owed >= min(silentRequests, int64(deadAfter)) && since >= silentFor.Nanoseconds()
}

// unknowing reports whether the server is as good as dead because too many different machines, none of which it ever
// answered, wait for it.
func (s *Server) unknowing(now int64, deadAfter int) bool {
	return s.strangers.Load() >= int64(deadAfter) && bits.OnesCount64(s.different.Load()) >= differentMachines &&
		now-s.strangersSince.Load() >= deadFor.Nanoseconds()
}

// reroute has the next requests go to the next address, and from another source port: connection tracking keeps a flow
// between two fixed ports on an endpoint that is gone.
func (s *Server) reroute() {
	s.next++
	s.detour = !s.detour
	s.forget()
}

// Bounds of a dead server's silence.
const (
	// deadFor is the least silence: answers to a burst of requests take a while.
	deadFor = 5 * time.Second
	// silentRequests that go unanswered are enough after silentFor: one machine that boots sends no more in that time.
	silentRequests = 3
	silentFor      = 30 * time.Second
	// owedGap ends a count of requests: those of boots that are hours apart say nothing together. The other server of a
	// pair answered them.
	owedGap = time.Minute
	// differentMachines that were never answered count, if they ask within strangersFor: one that the server does not
	// know may ask all day.
	differentMachines = 8
	strangersFor      = time.Minute
)

// Heard notes a reply from a server that is not passed on, for a reason that is the server's no less than its silence:
// it lives.
func (p *Pool) Heard(from netip.Addr, targets []Target, now int64) {
	p.Answered(from, targets, now, 0, Nothing)
}

// Answered notes a reply that matched a request, and what it gives to a machine, by its tag.
func (p *Pool) Answered(from netip.Addr, targets []Target, now int64, machine uint64, given Given) {
	clearIfSet(&p.unmatched)
	known := false
	for i := range targets {
		if t := &targets[i]; t.Addr.Addr() == from {
			t.Server.answered(now)
			t.Server.learn(machine, given)
			known = true
		}
	}
	if known {
		return
	}
	// A Service has translated the source. With one server the reply is that server's; with several, it counts for all.
	for i := range targets {
		targets[i].Server.answered(now)
		if len(targets) == 1 {
			targets[i].Server.learn(machine, given)
		}
	}
}

// Unsolicited notes a reply that matched nothing.
func (p *Pool) Unsolicited() { p.unmatched.Add(1) }

// check looks at every server, and returns whether one needs another lookup. It runs about once a second, in the
// goroutine of the pool.
func (p *Pool) check(now int64) (lookup bool) {
	crowded := p.config.Crowded(now)
	for _, s := range p.servers {
		seen := s.seen.Load()
		if seen != 0 {
			s.lastSeen.Set(float64(p.config.Wall(seen).UnixNano()) / 1e9)
		}
		unanswered := s.unanswered.Load()
		switch {
		case s.dead && seen != s.last:
			s.dead = false
			s.up.Set(1)
			p.config.Logger.Info("server answers again", "server", s.name)
		case s.silent(now, p.config.DeadAfter), s.unknowing(now, p.config.DeadAfter) && !crowded:
			p.died(s, seen, unanswered, now)
			lookup = true
		case s.unknowing(now, p.config.DeadAfter):
			s.reroute() // it may be dead, or the machines are invented ones, which no server answers
			lookup = true
		case seen == 0 && !s.told && unanswered >= int64(p.config.DeadAfter) && now-s.since.Load() >= deadFor.Nanoseconds():
			s.told = true // but not dead: it may know none of the machines that asked
			p.explain(s, seen, unanswered, [8]byte{}, now)
		}
	}
	return lookup
}

// died logs that a server does not answer, and reroutes the next requests.
func (p *Pool) died(s *Server, seen, unanswered, now int64) {
	s.up.Set(0)
	s.dead, s.last = true, seen
	var owedTo [8]byte
	binary.BigEndian.PutUint64(owedTo[:], s.owedTo.Load())
	s.reroute()
	p.explain(s, seen, unanswered, owedTo, now)
}

// explain logs what may be wrong with a server that does not answer. owedTo is the MAC address of a machine that it
// answered before, behind two zeroes.
func (p *Pool) explain(s *Server, seen, unanswered int64, owedTo [8]byte, now int64) {
	words, source := p.words, p.last.Source.String()
	switch {
	case p.unmatched.Load() >= unanswered/2:
		p.config.LogLimiter.WarnAt(now, "replies never match a request", func() []any {
			return []any{"server", s.name, "unanswered", unanswered, words.source, source,
				"remedy", "look for another relay with this " + words.source + ", or a server that changes " + words.identity}
		})
	case seen == 0:
		p.config.LogLimiter.WarnAt(now, "no reply from server at all", func() []any {
			return []any{"server", s.name, "unanswered", unanswered, words.source, source,
				"remedy", "check that the server runs, knows these clients, and can send to " + words.source + ", port " +
					p.portText()}
		})
	default:
		p.config.LogLimiter.WarnAt(now, "server stopped answering", func() []any {
			return []any{"server", s.name, "unanswered", unanswered, "mac", net.HardwareAddr(owedTo[2:]).String(),
				"last_reply_seconds", time.Duration(now - seen).Seconds(),
				"remedy", "check that the server runs; requests are still sent to it"}
		})
	}
}
