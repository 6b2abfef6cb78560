package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// handshakeTimeout bounds a client's TLS handshake.
const handshakeTimeout = 10 * time.Second

// Secure makes a TLS connection of a connection to an endpoint.
type Secure interface {
	Client(ctx context.Context, conn net.Conn, protocols ...string) (*tls.Conn, error)
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
	early []byte // read already
	ended bool   // the other end has sent its FIN
}

func (w *wire) Read(b []byte) (int, error) {
	if len(w.early) == 0 {
		n, err := w.Conn.Read(b)
		w.ended = w.ended || errors.Is(err, io.EOF)
		return n, err
	}
	n := copy(b, w.early)
	w.early = w.early[n:]
	return n, nil
}

// SetWriteDeadline does nothing. TLS alone sets one: five seconds for a close_notify, in which a slow peer would lose
// the bytes before it as well.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// secured is TLS in a connection.
type secured struct {
	*tls.Conn
	wire *wire
	tcp  *sock.Socket
}

// end passes the end of src on. If TLS has ended there without a close_notify, none is sent to dst either: its peer can
// see that bytes may be missing, as it could without the proxy.
func end(dst, src stream) error {
	from, _ := src.(*secured)
	to, _ := dst.(*secured)
	if from != nil && to != nil && from.wire.ended {
		return to.tcp.CloseWrite()
	}
	return dst.CloseWrite()
}

// handshake begins TLS on the client's connection, behind its PROXY header. It returns the protocol that was negotiated
// (ALPN).
func (s *session) handshake(ctx context.Context) (inner stream, protocol string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handshakeTimeout)
	defer cancel()
	below := &wire{Conn: s.client, early: s.early}
	conn := tls.Server(below, s.settings.TLS)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, "", fmt.Errorf("failed to end TLS: %w", err)
	}
	s.early = nil
	return &secured{conn, below, s.client}, conn.ConnectionState().NegotiatedProtocol, nil
}

// errTLS is a failed TLS handshake with an endpoint.
var errTLS = errors.New("no TLS with the endpoint")

// introduce sends the PROXY header on a new connection to an endpoint and begins TLS there, as far as the settings ask
// for them. It offers the endpoint the protocol that was negotiated with the client.
func (s *session) introduce(
	ctx context.Context, conn *sock.Socket, source, target netip.AddrPort, protocol string,
) (stream, error) {
	if s.settings.SendProxy > 0 {
		if err := sock.WriteProxyHeader(conn, s.settings.SendProxy, source, target); err != nil {
			return nil, fmt.Errorf("failed to send PROXY header: %w", err)
		}
	}
	if s.settings.Secure == nil {
		return conn, nil
	}
	if s.settings.Dial > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, s.settings.Dial)
		defer cancel()
	}
	var protocols []string
	if protocol != "" {
		protocols = []string{protocol}
	}
	below := &wire{Conn: conn}
	inner, err := s.settings.Secure.Client(ctx, below, protocols...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	return &secured{inner, below, conn}, nil
}
