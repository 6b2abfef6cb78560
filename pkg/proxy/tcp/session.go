package tcp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/internal/list"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

const (
	// longAge and longBytes are when a session is a long one: its endpoint's socket gets the options that find a dead
	// peer. For short ones they would cost as much as all the rest.
	longAge   = time.Second
	longBytes = 64 << 10
)

// state is how far a session has come.
type state uint8

const (
	accepted   state = iota // the client's PROXY header is awaited
	connecting              // to an endpoint
	passing                 // bytes, in both directions
	closed
)

// session is a client's connection and the connection to its endpoint, from accept to close. Only its loop's thread
// uses it, but for the methods that say otherwise.
type session struct {
	front    *Front
	settings *Settings
	in       *frontLoop
	state    state
	peer     netip.AddrPort // the other end of the client's connection
	source   netip.AddrPort // the client: the peer, or as the PROXY header has it
	target   netip.AddrPort // where the client connected to: by its PROXY header, else our own address
	client   side
	server   side // the endpoint's
	attempts endpoint.Attempts
	endpoint *endpoint.Endpoint // nil without one
	since    time.Time          // when the state began, except that of closed
	long     bool
	cut      string    // why we ended it from outside, as it is recorded; "" otherwise
	untaken  int       // bytes that the two peers had not taken when idle looked last
	moved    time.Time // when bytes moved last; only with an idle timeout
	charge   admission.Charge
	draft    draft
	header   *sock.Header // of the client's connection, while it is awaited

	timed  bool // in the loop's list of sessions that wait for a time
	byTime list.Link[*session]
}

// begin serves a connection that was accepted, as soon as the client is known.
func (s *session) begin() {
	if s.settings.SendProxy > 0 {
		s.target = sock.LocalAddr(s.client.fd)
	}
	if !contains(s.settings.AcceptProxy, s.peer.Addr()) {
		s.beginFor(s.peer)
		return
	}
	// It may be done, and s closed, before it returns: nothing is left to be stopped then.
	s.header = sock.AwaitHeader(s.in.loop, s.client.fd, func(source, target netip.AddrPort, err error) {
		switch {
		case err != nil:
			s.refuseHeader(err)
		case source.IsValid():
			s.target = target
			s.beginFor(source)
		default:
			s.beginFor(s.peer) // the load balancer's own health check
		}
	})
}

func (s *session) refuseHeader(err error) {
	if s.front.lines.Allow(s.peer.Addr(), "PROXY header") {
		s.front.log.Info("PROXY header refused", "peer", s.peer, "error", err)
	}
	s.refuse(refusedHeader)
	s.reset()
}

// beginFor goes on with a client that is known: it counts the session for it, unless the client has as many as it may.
func (s *session) beginFor(source netip.AddrPort) {
	client := source.Addr()
	s.source, s.draft.Client = source, client
	if why := s.charge.Move(client); why != admission.Admitted {
		s.refuse(refusalOf(why))
		s.reset()
		return
	}
	if !s.front.conns.Count(s, client, s.settings.MaxPerClient) {
		s.refuse(refusedClient)
		s.reset()
		return
	}
	s.attempts = s.settings.Pool.Attempts(client, s.settings.Attempts)
	s.connect()
}

// connect begins to connect to the next endpoint.
func (s *session) connect() {
	var err error
	s.state, s.since = connecting, s.in.loop.Now()
	if s.endpoint, err = s.attempts.Next(); err != nil {
		s.endpoint = nil
		s.refuseEndpoint(err)
		return
	}
	open := sock.Open
	if s.server.bufferSet = s.front.account.SmallBuffers(); s.server.bufferSet {
		open = sock.OpenSmall
	}
	if s.server.fd, err = open(s.endpoint.Addr); err != nil {
		s.failed(err)
		return
	}
	_ = sock.NoDelay(s.server.fd)
	waiting, err := sock.Connect(s.server.fd, s.endpoint.Addr)
	switch {
	case err != nil:
		s.failed(err)
	case !waiting:
		s.connected()
	default:
		s.in.wantTicks(s)
		if err := s.server.watch(loop.Writes); err != nil {
			s.refuseEndpoint(err)
		}
	}
}

// failed goes on with another endpoint, or refuses the client.
func (s *session) failed(err error) {
	s.front.metrics.dials.WithLabelValues(dialReason(err)).Inc()
	s.server.close(true)
	how := endpoint.Unseen
	if sock.NoLocalPort(err) {
		how = endpoint.Unreached
	} else if sock.Exhausted(err) { // not the endpoint's fault, and another would fail as well
		how = endpoint.NotItsFault
	}
	s.attempts.Done(how, fmt.Errorf("failed to connect to %s: %w", s.endpoint.Addr, err))
	s.endpoint = nil
	s.connect()
}

func (s *session) refuseEndpoint(err error) {
	if s.front.lines.Allow(s.source.Addr(), "no endpoint") {
		s.front.log.Warn("no endpoint took the connection", "client", s.source, "error", err)
	}
	s.refuse(refusedBackend)
	s.reset()
}

// connected sends the PROXY header to the endpoint and begins to pass bytes on.
func (s *session) connected() {
	if s.settings.SendProxy > 0 {
		if err := sock.WriteProxyHeader(&s.server, s.settings.SendProxy, s.source, s.target); err != nil {
			s.failed(fmt.Errorf("failed to send PROXY header: %w", err))
			return
		}
	}
	s.pass()
	// The client's first bytes are read before its socket is watched, so that the loop does not report them again.
	// It is watched also if the client has ended its side: it may be reset later.
	s.client.move(untilShort)
	if s.state != passing {
		return
	}
	if err := s.client.watch(loop.Stream); err != nil {
		s.client.tear(err)
		return
	}
	if !s.server.watched() {
		if err := s.server.watch(loop.Stream); err != nil {
			s.server.tear(err)
		}
	}
}

// pass begins to pass bytes on.
func (s *session) pass() {
	s.attempts.Done(endpoint.Taken, nil)
	s.state, s.since = passing, s.in.loop.Now()
	s.moveNow()
	s.established(s.endpoint.Addr)
	s.in.wantTicks(s)
}

// tick does what is due. It reports whether there is more to wait for.
func (s *session) tick(now time.Time) bool {
	took := now.Sub(s.since)
	switch s.state {
	case connecting:
		if limit := s.settings.Dial; limit > 0 && took >= limit {
			s.failed(os.ErrDeadlineExceeded)
		}
	case passing:
		if took >= longAge {
			s.setLongOptions()
		}
		if s.idle() {
			s.client.tear(os.ErrDeadlineExceeded)
			return false
		}
		client, server := s.client.tick(now), s.server.tick(now)
		return client || server || s.settings.Idle > 0 || !s.long
	}
	return s.state != closed
}

// setLongOptions sets the options of a long connection on the endpoint's socket; those of the client's are the
// listener's.
func (s *session) setLongOptions() {
	if !s.long {
		s.long = true
		_ = s.front.config.Options.Set(s.server.fd)
	}
}

// moveNow notes that bytes have moved.
func (s *session) moveNow() {
	if s.settings.Idle > 0 {
		s.moved = time.Now()
	}
}

// idle reports whether no bytes have moved for the idle timeout: none that we passed on, and none that a peer took out
// of a socket's buffer. The kernel wakes a writer only when a third of that buffer is free, which can take a slow
// reader longer than the timeout.
func (s *session) idle() bool {
	if s.settings.Idle <= 0 || time.Since(s.moved) < s.settings.Idle {
		return false
	}
	before := s.untaken
	s.untaken = sock.Outstanding(s.client.fd) + sock.Outstanding(s.server.fd)
	if s.untaken == before {
		return true
	}
	s.moveNow()
	return false
}

// count notes bytes that were passed on.
func (s *session) count(d direction, n int) {
	s.front.metrics.transferred[d].Add(float64(n))
	s.draft.bytes[d] += int64(n)
	if d == toClient {
		s.progress()
	}
	s.charge.Touch()
	s.moveNow()
}

// abort ends the session from outside, for a reason that is recorded.
func (s *session) abort(why string) {
	if s.state != closed {
		s.cut = why
		s.reset()
	}
}

// Evict implements admission.Holder. Any goroutine may call it.
func (s *session) Evict() { s.do(func() { s.abort(boot.ReasonEvicted) }) }

// close ends the session in order.
func (s *session) close() { s.end(false) }

// reset ends the session by a reset of both connections.
func (s *session) reset() { s.end(true) }

func (s *session) end(byReset bool) {
	if s.state == closed {
		return
	}
	s.state = closed
	s.header.Stop()
	s.client.close(byReset)
	s.server.close(byReset)
	s.in.forget(s)
	if s.endpoint != nil {
		s.endpoint.Release()
	}
	s.front.remove(s)
}

// do calls f in the session's loop; if the loop has ended, here. Any goroutine may call it.
func (s *session) do(f func()) {
	if s.in.loop.Do(f) {
		return
	}
	<-s.in.loop.Ended()
	s.in.afterLoop.Lock()
	defer s.in.afterLoop.Unlock()
	f()
}

// noteError notes and counts the error by which a stream ended, and reports whether the stream is torn: some errors are
// an end in order.
func (s *session) noteError(err error) bool {
	how := endError
	switch {
	case err == nil || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.ENOTCONN):
		return false
	case errors.Is(err, os.ErrDeadlineExceeded):
		how = endIdle
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrUnexpectedEOF):
		how = endReset
	case errors.Is(err, syscall.ETIMEDOUT):
		how = endTimeout
	}
	s.front.metrics.aborted[how].Inc()
	if s.draft.torn == nil {
		s.draft.torn = &how
	}
	return true
}

func contains(prefixes []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
}

func dialReason(err error) string {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "unreachable"
	case errors.Is(err, syscall.ECONNRESET):
		return "reset"
	case sock.Exhausted(err):
		return "resources"
	default:
		return "other"
	}
}
