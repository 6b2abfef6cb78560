package relay

import (
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// server is a DHCP server as the settings name it.
type server struct {
	name string
	host string
	port uint16

	// known are the addresses of the last good lookup; requests go to number next of them. These, detour, dead
	// and last belong to the goroutine of servers.
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

func newServer(m *metrics, name string) *server {
	host, port, _ := splitServer(name) // New has checked
	s := &server{
		name: name, host: host, port: port,
		requests: m.requests.WithLabelValues(name), replies: m.replies.WithLabelValues(name),
		up: m.serverUp.WithLabelValues(name), lastSeen: m.seen.WithLabelValues(name),
	}
	s.up.Set(1)
	return s
}

// asked notes a request, whether its answer comes by way of this relay, and whether its machine was served before.
func (s *server) asked(now int64, answered, served bool) {
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

// deadFor is the least time for which a dead server was silent: a burst of requests takes a while to answer.
const deadFor = 5 * time.Second

// health watches whether the servers answer, and says what is likely wrong when they do not.
type health struct {
	relay     *Relay
	servers   []*server
	strangers atomic.Int64 // replies that match nothing, since the last one that matched
}

// answered notes a reply that matched a request.
func (h *health) answered(from peer, to *routes, now int64) {
	h.strangers.Store(0)
	known := false
	for i := range to.targets {
		if t := &to.targets[i]; t.ip == from.ip {
			t.server.answered(now)
			known = true
		}
	}
	if known {
		return
	}
	// A Service translated the source. With one server it is clear whose it is; with several, none is accused.
	for i := range to.targets {
		to.targets[i].server.answered(now)
	}
}

func (s *server) answered(now int64) {
	s.replies.Inc()
	s.unanswered.Store(0)
	s.ofServed.Store(0)
	s.seen.Store(now)
}

// unsolicited notes a reply that matched nothing.
func (h *health) unsolicited(now int64, from peer, m dhcp.Message) {
	h.strangers.Add(1)
	h.relay.notices.warn(now, "dropped a reply that nobody asked for", func() []any {
		return []any{"source", from.String(), "type", m.Type().String(), "xid", m.XID(), "giaddr", dhcp.Addr(m.Giaddr())}
	})
}

// check looks at every server, and returns whether one needs another lookup. It runs about once a second, in the
// goroutine of servers.
func (h *health) check(now int64) (lookup bool) {
	crowded := h.relay.crowded(now)
	for _, s := range h.servers {
		seen := s.seen.Load()
		if seen != 0 {
			s.lastSeen.Set(float64(h.relay.wall(seen).UnixNano()) / 1e9)
		}
		unanswered := s.unanswered.Load()
		switch {
		case s.dead && seen != s.last:
			s.dead = false
			s.up.Set(1)
			h.relay.logger.Info("server answers again", "server", s.name)
		case unanswered >= int64(h.relay.config.DeadAfter) && now-s.since.Load() >= deadFor.Nanoseconds():
			lookup = true
			if crowded && s.ofServed.Load() < int64(h.relay.config.DeadAfter) {
				s.turn() // perhaps it is dead; but no server answers invented machines
				continue
			}
			h.died(s, seen, unanswered, now)
		}
	}
	return lookup
}

// turn has the next requests take another way: to the next address, and from another source port, since connection
// tracking keeps a flow between two fixed ports on an endpoint that is gone.
func (s *server) turn() {
	s.next++
	s.detour = !s.detour
	s.unanswered.Store(0)
	s.ofServed.Store(0)
}

// died says so, and has the next requests take another way.
func (h *health) died(s *server, seen, unanswered, now int64) {
	s.up.Set(0)
	s.dead, s.last = true, seen
	s.turn()
	giaddr := netip.AddrFrom4(h.relay.routes.Load().giaddr).String()
	switch {
	case h.strangers.Load() >= unanswered/2:
		h.relay.notices.warn(now, "replies never match a request", func() []any {
			return []any{"server", s.name, "unanswered", unanswered, "giaddr", giaddr,
				"remedy", "look for another relay with this giaddr, or a server that changes xid or chaddr"}
		})
	case seen == 0:
		h.relay.notices.warn(now, "no reply from server at all", func() []any {
			return []any{"server", s.name, "unanswered", unanswered, "giaddr", giaddr,
				"remedy", "check that the server runs, knows these clients, and can send to giaddr, port 67"}
		})
	default:
		h.relay.notices.warn(now, "server stopped answering", func() []any {
			return []any{"server", s.name, "unanswered", unanswered,
				"last_reply_seconds", time.Duration(now - seen).Seconds(),
				"remedy", "check that the server runs; requests are still sent to it"}
		})
	}
}

// openDetour makes a socket on a port that the kernel chooses. Requests only leave through it: servers answer giaddr
// on port 67.
func openDetour() (*socket, error) {
	s, err := newSocket(unix.AF_INET, unix.SOCK_DGRAM, "detour")
	if err != nil {
		return nil, err
	}
	if err := s.control(func(fd int) error {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0) // as little as there is
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrInet4{}))
	}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}
