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

	// known are the addresses of the last good lookup; requests go to known[next]. These two, dead, last and told belong
	// to the goroutine of the pool.
	known []netip.Addr
	next  int
	dead  bool
	last  int64 // the value of seen when the server was taken for dead
	told  bool  // that it never answered

	unanswered atomic.Int64 // requests since the last reply
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

// Asked notes a request to the server, and whether the server answers such a one by way of this relay: else its
// silence means nothing.
func (s *Server) Asked(now int64, answerExpected bool) {
	s.requests.Inc()
	if answerExpected && s.unanswered.Add(1) == 1 {
		s.since.Store(now)
	}
}

// Unanswered is how many requests were sent since the last reply.
func (s *Server) Unanswered() int64 { return s.unanswered.Load() }

func (s *Server) answered(now int64) {
	s.replies.Inc()
	clearIfSet(&s.unanswered)
	s.seen.Store(now)
}

// clearIfSet stores 0 where that is not there: it is done for each packet, and to look costs less.
func clearIfSet(n *atomic.Int64) {
	if n.Load() != 0 {
		n.Store(0)
	}
}

// deadFor is the least silence of a dead server: answers to a burst of requests take a while.
const deadFor = 5 * time.Second

// silent reports whether the server leaves so many requests in a row unanswered that its next address is asked.
func (s *Server) silent(now int64, deadAfter int) bool {
	return s.unanswered.Load() >= int64(deadAfter) && now-s.since.Load() >= deadFor.Nanoseconds()
}

// Heard notes a reply from a server: also one that is not passed on, for a reason that is the server's no less than its
// silence.
func (p *Pool) Heard(from netip.Addr, targets []Target, now int64) {
	clearIfSet(&p.unmatched)
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
	for _, s := range p.servers {
		seen := s.seen.Load()
		if seen != 0 {
			s.lastSeen.Set(float64(p.config.Wall(seen).UnixNano()) / 1e9)
		}
		if s.dead && seen != s.last {
			s.dead = false
			s.up.Set(1)
			p.config.Logger.Info("server answers again", "server", s.name)
		}
		if !s.silent(now, p.config.DeadAfter) {
			continue
		}
		unanswered := s.unanswered.Swap(0)
		s.next++ // the next requests go to its next address
		lookup = true
		switch {
		case seen == 0 && s.told:
			continue
		case seen == 0:
			s.told = true // but not dead: it may know none of the machines that ask
		default:
			s.dead, s.last = true, seen
			s.up.Set(0)
		}
		p.explain(s, seen, unanswered, now)
	}
	return lookup
}

// explain logs what may be wrong with a server that does not answer.
func (p *Pool) explain(s *Server, seen, unanswered, now int64) {
	source := p.last.Source.String()
	switch {
	case p.unmatched.Load() >= unanswered/2:
		p.config.LogLimiter.WarnAt(now, "replies never match a request", func() []any {
			return []any{"server", s.name, "unanswered", unanswered, p.source, source,
				"remedy", "look for another relay with this " + p.source + ", or a server that changes a request's identity"}
		})
	case seen == 0:
		p.config.LogLimiter.WarnAt(now, "no reply from server at all", func() []any {
			return []any{"server", s.name, "unanswered", unanswered, p.source, source,
				"remedy", "check that the server runs, knows these clients, and can send to " + p.source + ", port " +
					p.portText()}
		})
	default:
		p.config.LogLimiter.WarnAt(now, "server stopped answering", func() []any {
			return []any{"server", s.name, "unanswered", unanswered,
				"last_reply_seconds", time.Duration(now - seen).Seconds(),
				"remedy", "check that the server runs, and knows the clients that ask; requests are still sent to it"}
		})
	}
}
