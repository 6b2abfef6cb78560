package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// session is a client's connection and the connection to its endpoint.
type session struct {
	front       *Front
	settings    *Settings
	client      *sock.Socket
	peer        netip.AddrPort // the other end of client
	early       []byte         // came with the client's PROXY header
	pendingDial *pendingDial   // that the loop has begun
	progress    progress       // of both directions in the loop
	lease       admission.Lease
	moved       atomic.Int64 // when bytes moved last, in nanoseconds since started; only with an idle timeout
	outcome     outcome

	mu      sync.Mutex
	server  *sock.Socket
	aborted bool
	gone    chan struct{} // closed by abort; made by aborting
	waiting int           // bytes that the two peers had not taken when alive looked last
}

// errAborted ends a session that was aborted.
var errAborted = errors.New("aborted")

// progress is how far the loop has come with both directions when it hands a session off.
type progress [2]struct {
	ended bool   // and the half-close was passed on
	rest  []byte // read, but not written
}

// pendingDial is an attempt to connect that the loop has begun. It may have failed already.
type pendingDial struct {
	endpoint *endpoint.Endpoint
	fd       int // below 0 with an error
	since    time.Time
	err      error
}

// run serves the session until its end.
func (s *session) run(ctx context.Context) {
	defer s.client.Close()
	metrics := s.front.metrics
	source, target, err := s.clientAddress()
	if err != nil {
		if s.front.lines.Allow(s.peer.Addr(), "PROXY header") {
			s.front.log.Info("PROXY header refused", "peer", s.peer, "error", err)
		}
		s.refuse(refusedHeader)
		s.client.Reset()
		return
	}
	s.outcome.client = source.Addr()
	if !s.charge(source.Addr()) {
		s.client.Reset()
		return
	}
	client, protocol := stream(s.client), ""
	if s.settings.TLS != nil {
		inner, chosen, err := s.handshake(ctx)
		if err != nil { // a machine that was switched off, a scanner, a wrong certificate: nothing to be mended here
			s.front.log.Debug("TLS handshake failed", "client", source, "error", err)
			s.refuse(refusedTLS)
			return
		}
		client, protocol = inner, chosen
	}
	server, e, err := s.dial(ctx, source, target, protocol)
	if err != nil {
		if s.front.lines.Allow(source.Addr(), "no endpoint") {
			s.front.log.Warn("no endpoint took the connection", "client", source, "error", err)
		}
		s.refuse(refusedBackend)
		s.client.Reset()
		return
	}
	defer e.Release()
	defer s.server.Close()
	s.connected(e.Addr)
	if len(s.early) > 0 {
		n, err := server.Write(s.early)
		metrics.bytes(toServer, int64(n))
		if err != nil {
			s.client.Reset()
			return
		}
	}
	s.pass(client, server)
}

// charge counts the session for its client, unless the client has as many as it may. It counts a refusal.
func (s *session) charge(client netip.Addr) bool {
	if why := s.lease.Move(client); why != admission.Admitted {
		s.refuse(refusalOf(why))
		return false
	}
	if !s.front.conns.Count(s, client, s.settings.MaxPerClient) {
		s.refuse(refusedClient)
		return false
	}
	return true
}

// adopt has abort close the endpoint's connection as well. It is false when the session was aborted already.
func (s *session) adopt(server *sock.Socket) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = server
	return !s.aborted
}

// abort ends the session from outside.
func (s *session) abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil && !s.aborted {
		close(s.gone)
	}
	s.aborted = true
	s.client.Reset()
	if s.server != nil {
		s.server.Reset()
	}
}

// dial connects to an endpoint, and to another one if that fails. It goes on while the front drains: a connection that
// was accepted before is still served.
func (s *session) dial(
	ctx context.Context, source, target netip.AddrPort, protocol string,
) (stream, *endpoint.Endpoint, error) {
	ctx = context.WithoutCancel(ctx)
	var given *endpoint.Endpoint
	if s.pendingDial != nil {
		given = s.pendingDial.endpoint
	}
	var server stream
	e, err := s.settings.Pool.Try(source.Addr(), given, s.settings.Attempts,
		func(e *endpoint.Endpoint, _ int) (_ endpoint.Outcome, err error) {
			if server, err = s.attempt(ctx, e, source, target, protocol); err == nil {
				return endpoint.Taken, nil
			}
			if errors.Is(err, errAborted) {
				return endpoint.Spoiled, err
			}
			s.front.metrics.dialFailed(dialReason(err))
			if sock.Exhausted(err) { // not the endpoint's fault, and another would fail as well
				return endpoint.Spoiled, err
			}
			return endpoint.Refused, err
		})
	return server, e, err
}

// attempt connects to one endpoint.
func (s *session) attempt(
	ctx context.Context, e *endpoint.Endpoint, source, target netip.AddrPort, protocol string,
) (stream, error) {
	pending := s.pendingDial
	s.pendingDial = nil
	plain, err := dial(e.Addr, s.settings, s.front.room.Crowded(), pending, s.adopt)
	if err != nil {
		return nil, s.blame(err)
	}
	server, err := s.introduce(ctx, plain, source, target, protocol)
	if err != nil {
		plain.Reset()
		return nil, s.blame(err)
	}
	return server, nil
}

// blame returns errAborted instead of an error that abort has caused, so that the endpoint is not blamed for it.
func (s *session) blame(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.aborted {
		return errAborted
	}
	return err
}

// pass copies both directions until both have ended.
func (s *session) pass(client, server stream) {
	if s.settings.Idle > 0 {
		s.moveNow()
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.copyDirection(client, server, toClient)
	}()
	s.copyDirection(server, client, toServer)
	<-ended
}

// started is what times are counted from, since the wall clock may be set.
var started = time.Now()

func (s *session) moveNow() { s.moved.Store(int64(time.Since(started))) }

func (s *session) lastMoved() time.Time { return started.Add(time.Duration(s.moved.Load())) }

// alive reports whether bytes moved while a direction waited for the idle timeout: bytes that we passed on, or that a
// peer took out of a socket's buffer. The kernel wakes a writer only when a third of that buffer is free, which can
// take a slow reader longer than the timeout.
func (s *session) alive() bool {
	if s.settings.Idle <= 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.lastMoved()) < s.settings.Idle {
		return true
	}
	before := s.waiting
	s.waiting = s.client.Outstanding() + s.server.Outstanding()
	if s.waiting == before {
		return false
	}
	s.moveNow()
	return true
}

// copyDirection copies until the source ends. An end is passed on as a half-close, an error as a reset of both
// connections, since bytes may be missing.
func (s *session) copyDirection(dst, src stream, d direction) {
	if s.progress[d].ended {
		return
	}
	c := copier{session: s, dst: dst, src: src, direction: d}
	err := c.finish(s.progress[d].rest)
	if err == nil {
		err = c.copy()
	}
	if err == nil {
		err = end(dst, src)
	}
	if s.broken(err) {
		s.client.Reset()
		s.server.Reset()
	}
}

// broken reports whether an error tore the stream, and counts it.
func (s *session) broken(err error) bool {
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
	s.front.metrics.ended(how)
	s.outcome.torn.CompareAndSwap(0, int32(how)+1)
	return true
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
	case errors.Is(err, syscall.EADDRNOTAVAIL), sock.Exhausted(err):
		return "resources"
	case errors.Is(err, errTLS):
		return "tls"
	default:
		return "other"
	}
}
