package server

import (
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

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
	last   int64 // seen, when it was taken for dead

	unanswered atomic.Int64 // requests since the last reply
	ofServed   atomic.Int64 // of those, the ones of machines that were served before
	since      atomic.Int64 // when the first of those was sent
	seen       atomic.Int64 // when the last reply came; 0: never

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

// Asked notes a request. answered tells whether its answer passes this relay, and served whether its machine was served
// before.
func (s *Server) Asked(now int64, answered, served bool) {
	s.requests.Inc()
	if !answered {
		return
	}
	if s.unanswered.Add(1) == 1 {
		s.since.Store(now)
	}
	if served {
		s.ofServed.Add(1)
	}
}

// Unanswered is how many requests were sent since the last reply.
func (s *Server) Unanswered() int64 { return s.unanswered.Load() }

func (s *Server) answered(now int64) {
	s.replies.Inc()
	s.unanswered.Store(0)
	s.ofServed.Store(0)
	s.seen.Store(now)
}

// reroute has the next requests go to the next address, and from another source port: connection tracking keeps a flow
// between two fixed ports on an endpoint that is gone.
func (s *Server) reroute() {
	s.next++
	s.detour = !s.detour
	s.unanswered.Store(0)
	s.ofServed.Store(0)
}

// deadFor is the least silence of a dead server: answers to a burst of requests take a while.
const deadFor = 5 * time.Second

// Answered notes a reply that matched a request.
func (p *Pool) Answered(from netip.Addr, targets []Target, now int64) {
	p.unmatched.Store(0)
	known := false
	for i := range targets {
		if t := &targets[i]; t.Addr.Addr() == from {
			t.Server.answered(now)
			known = true
		}
	}
	if known {
		return
	}
	// A Service has translated the source. With one server the reply is that server's; with several, it counts for all.
	for i := range targets {
		targets[i].Server.answered(now)
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
		case unanswered >= int64(p.config.DeadAfter) && now-s.since.Load() >= deadFor.Nanoseconds():
			lookup = true
			if crowded && s.ofServed.Load() < int64(p.config.DeadAfter) {
				s.reroute() // it may be dead, or the machines are invented ones, which no server answers
				continue
			}
			p.died(s, seen, unanswered, now)
		}
	}
	return lookup
}

// died logs that a server does not answer, and reroutes the next requests.
func (p *Pool) died(s *Server, seen, unanswered, now int64) {
	s.up.Set(0)
	s.dead, s.last = true, seen
	s.reroute()
	words, source := &p.config.Words, p.last.Source.String()
	switch {
	case p.unmatched.Load() >= unanswered/2:
		p.config.LogLimiter.WarnAt(now, "replies never match a request", func() []any {
			return []any{"server", s.name, "unanswered", unanswered, words.Source, source,
				"remedy", "look for another relay with this " + words.Source + ", or a server that changes " + words.Identity}
		})
	case seen == 0:
		p.config.LogLimiter.WarnAt(now, "no reply from server at all", func() []any {
			return []any{"server", s.name, "unanswered", unanswered, words.Source, source,
				"remedy", "check that the server runs, knows these clients, and can send to " + words.Source + ", port " +
					p.portText()}
		})
	default:
		p.config.LogLimiter.WarnAt(now, "server stopped answering", func() []any {
			return []any{"server", s.name, "unanswered", unanswered,
				"last_reply_seconds", time.Duration(now - seen).Seconds(),
				"remedy", "check that the server runs; requests are still sent to it"}
		})
	}
}
