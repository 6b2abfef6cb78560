package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// handshakeTimeout bounds a client's TLS handshake.
const handshakeTimeout = 10 * time.Second

// Secure makes a TLS connection of a connection to an endpoint.
type Secure interface {
	Client(ctx context.Context, conn net.Conn, protocols ...string) (*tls.Conn, error)
}

// tlsPart is what a session with TLS has besides: goroutines, which crypto/tls needs. They read and write; the loop
// does everything else.
type tlsPart struct {
	life     context.Context
	cancel   context.CancelFunc
	busy     bool   // goroutines use the sockets
	client   stream // nil before the handshake
	protocol string // that the client has negotiated (ALPN)
}

// stream is one side of a session: a TCP connection, or the TLS stream in it. CloseWrite sends a FIN, or a
// close_notify. A FIN without a close_notify is an end if it comes between two records, as many programs end so, and
// tears the stream within a record.
type stream interface {
	io.ReadWriter
	CloseWrite() error
	SetReadDeadline(t time.Time) error
}

// wire is the TCP connection below TLS.
type wire struct {
	net.Conn
	ended bool // the other end has sent its FIN
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	w.ended = w.ended || errors.Is(err, io.EOF)
	return n, err
}

// SetWriteDeadline does nothing. TLS alone sets one: five seconds for a close_notify, in which a slow peer would lose
// the bytes before it as well.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// tlsStream is TLS in a connection.
type tlsStream struct {
	*tls.Conn
	wire *wire
	tcp  *sock.Socket
}

// socketUnder is the connection of a stream.
func socketUnder(s stream) syscall.Conn {
	if secure, ok := s.(*tlsStream); ok {
		return secure.tcp
	}
	return s.(*sock.Socket)
}

// passEnd passes the end of src on. If TLS has ended there without a close_notify, none is sent to dst either: its peer
// can see that bytes may be missing, as it could without the proxy.
func passEnd(dst, src stream) error {
	from, _ := src.(*tlsStream)
	to, _ := dst.(*tlsStream)
	if from != nil && to != nil && from.wire.ended {
		return to.tcp.CloseWrite()
	}
	return dst.CloseWrite()
}

// errTLS is a failed TLS handshake with an endpoint.
var errTLS = errors.New("no TLS with the endpoint")

// unused reports whether no goroutine uses the sockets; without TLS none does.
func (t *tlsPart) unused() bool { return t == nil || !t.busy }

// stop ends the goroutines.
func (t *tlsPart) stop() {
	if t != nil {
		t.cancel()
	}
}

// inGoroutine runs f in a goroutine, and what it returns in the loop, unless the session was closed meanwhile.
func (s *session) inGoroutine(f func() (then func())) {
	s.tls.busy = true
	go func() {
		then := f()
		s.do(func() {
			s.tls.busy = false
			if s.state == closed {
				s.giveBack()
				return
			}
			then()
		})
	}()
}

// socketOf takes a side's socket out of the loop, for goroutines.
func (s *session) socketOf(side *side) (_ *sock.Socket, err error) {
	if s.tls == nil {
		s.tls = &tlsPart{}
		s.tls.life, s.tls.cancel = context.WithCancel(context.Background())
	}
	if side.socket == nil {
		s.in.loop.Release(side.fd, side.handle)
		side.handle = loop.Handle{}
		side.socket, err = sock.NewSocket(side.fd)
	}
	return side.socket, err
}

// handshake begins TLS on the client's connection, then goes on with the endpoint's.
func (s *session) handshake() {
	client, err := s.socketOf(&s.client)
	if err != nil {
		s.refuseTLS(err)
		return
	}
	s.inGoroutine(func() func() {
		ctx, cancel := context.WithTimeout(s.tls.life, handshakeTimeout)
		defer cancel()
		below := &wire{Conn: client}
		conn := tls.Server(below, s.settings.TLS)
		if err := conn.HandshakeContext(ctx); err != nil {
			return func() { s.refuseTLS(err) }
		}
		return func() {
			s.tls.client, s.tls.protocol = &tlsStream{conn, below, client}, conn.ConnectionState().NegotiatedProtocol
			s.connect()
		}
	})
}

// refuseTLS is for a machine that was switched off, a scanner, a wrong certificate: nothing to be mended here.
func (s *session) refuseTLS(err error) {
	s.front.log.Debug("TLS handshake failed", "client", s.source, "error", err)
	s.refuse(refusedTLS)
	s.close()
}

// passSecure is pass for a session with TLS. It begins TLS with the endpoint first, if the settings ask for that, and
// offers the protocol that was negotiated with the client.
func (s *session) passSecure() {
	client, err := s.socketOf(&s.client)
	if err == nil && s.tls.client == nil {
		s.tls.client = client
	}
	server, failure := s.socketOf(&s.server)
	if err := errors.Join(err, failure); err != nil {
		s.refuseEndpoint(err)
		return
	}
	s.setLongOptions()
	s.inGoroutine(func() func() {
		inner, err := s.handshakeServer(server)
		if err != nil {
			return func() { s.failed(err) }
		}
		return func() {
			s.pass()
			s.inGoroutine(func() func() {
				var back sync.WaitGroup
				back.Go(func() { s.copy(s.tls.client, inner, &s.server) })
				s.copy(inner, s.tls.client, &s.client)
				back.Wait()
				return s.close
			})
		}
	})
}

// handshakeServer begins TLS with the endpoint, where the settings ask for it.
func (s *session) handshakeServer(server *sock.Socket) (stream, error) {
	if s.settings.Secure == nil {
		return server, nil
	}
	ctx := s.tls.life
	if s.settings.Dial > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.settings.Dial)
		defer cancel()
	}
	var protocols []string
	if s.tls.protocol != "" {
		protocols = []string{s.tls.protocol}
	}
	below := &wire{Conn: server}
	inner, err := s.settings.Secure.Client(ctx, below, protocols...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	return &tlsStream{inner, below, server}, nil
}

// copy passes one direction on, record by record. An end becomes a half-close, an error a reset of both connections,
// since bytes may be missing.
func (s *session) copy(dst, src stream, from *side) {
	err := s.copyRecords(dst, src, from)
	if errors.Is(err, io.EOF) {
		err = passEnd(dst, src)
	}
	if s.noteError(err) {
		s.do(s.reset)
	}
}

func (s *session) copyRecords(dst, src stream, from *side) error {
	defer from.resize(socketUnder(dst), socketUnder(src), sock.Small)
	for passed := 0; ; {
		n, err := s.copyRecord(dst, src, from.direction)
		if err != nil {
			return err
		}
		if passed += n; passed >= spliceAfter {
			passed = 0
			from.resize(socketUnder(dst), socketUnder(src), sock.Largest)
		}
	}
}

// copyRecord borrows a buffer only when there is something to be read, but from TLS before that: only TLS itself knows
// whether it has bytes of the last record left.
func (s *session) copyRecord(dst, src stream, d direction) (n int, err error) {
	if plain, ok := src.(*sock.Socket); ok {
		if err := plain.Await(); err != nil {
			return 0, err
		}
	}
	buffer := sock.Borrow()
	defer buffer.Return()
	if n, err = src.Read(buffer[:]); n == 0 {
		return 0, err
	}
	n, err = dst.Write(buffer[:n])
	s.count(d, n)
	return n, err
}
