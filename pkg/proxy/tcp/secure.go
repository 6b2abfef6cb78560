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
)

// handshakeTimeout bounds a client's TLS handshake.
const handshakeTimeout = 10 * time.Second

// Secure makes TLS of a connection to an endpoint.
type Secure interface {
	Client(ctx context.Context, conn net.Conn, protocols ...string) (*tls.Conn, error)
}

// stream is one side of a session: a TCP connection, or the TLS in it. CloseWrite is a FIN, or a close_notify. A FIN
// without a close_notify is taken for an end between two records, as many programs end so, and for a torn stream
// within one.
type stream interface {
	io.ReadWriter
	CloseWrite() error
	SetReadDeadline(t time.Time) error
}

// prefixed is a connection of which a part has been read already.
type prefixed struct {
	net.Conn
	early []byte
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.early) == 0 {
		return p.Conn.Read(b)
	}
	n := copy(b, p.early)
	p.early = p.early[n:]
	return n, nil
}

// handshake ends TLS on the client's connection, behind its PROXY header. It returns the protocol that was agreed on.
func (s *session) handshake(ctx context.Context) (inner *tls.Conn, protocol string, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), handshakeTimeout)
	defer cancel()
	inner = tls.Server(&prefixed{s.client, s.early}, s.settings.TLS)
	if err := inner.HandshakeContext(ctx); err != nil {
		return nil, "", fmt.Errorf("failed to end TLS: %w", err)
	}
	s.early = nil
	return inner, inner.ConnectionState().NegotiatedProtocol, nil
}

// errTLS is a connection to an endpoint on which TLS itself failed: another's certificate, or no TLS at all.
var errTLS = errors.New("no TLS with the endpoint")

// introduce says on a new connection to an endpoint what comes before the client's own bytes: its PROXY header, and
// TLS, offering the protocol that the client chose.
func (s *session) introduce(
	ctx context.Context, conn *socket, source, target netip.AddrPort, protocol string,
) (stream, error) {
	if s.settings.SendProxy > 0 {
		if err := s.tellClient(conn, source, target); err != nil {
			return nil, fmt.Errorf("failed to send PROXY header: %w", err)
		}
	}
	if s.settings.Secure == nil {
		return conn, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.settings.Dial)
	defer cancel()
	var protocols []string
	if protocol != "" {
		protocols = []string{protocol}
	}
	inner, err := s.settings.Secure.Client(ctx, conn, protocols...)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errTLS, err)
	}
	return inner, nil
}
