package web

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/frames"
)

// By these names net/http's server knows who serves HTTP/2: behind TLS, and without it where the client's preface has
// been read. The latter is given its connection within a *tls.Conn.
const (
	protocolHTTP2 = "h2"
	protocolPlain = "unencrypted_http2"
)

// preface is what a client of HTTP/2 begins with (RFC 9113, section 3.4).
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// boundFrames has the server's connections of HTTP/2 pass through package frames. It is called before the server
// serves.
func (s *server) boundFrames(header time.Duration) {
	_ = s.Serve(noListener{}) // sets TLSNextProto
	plain := s.TLSNextProto[protocolPlain]
	serve := func(hs *http.Server, nc net.Conn, h http.Handler) {
		bounded := frames.New(nc, orNone(header), func(why frames.Drop) { s.front.metrics.refused(why.String()) })
		plain(hs, tls.Client(wrapped{plain: bounded}, nil), h)
	}
	s.TLSNextProto[protocolHTTP2] = func(hs *http.Server, c *tls.Conn, h http.Handler) {
		if !readPreface(c, orNone(header)) {
			_ = c.Close()
			return
		}
		serve(hs, c, h)
	}
	s.TLSNextProto[protocolPlain] = func(hs *http.Server, c *tls.Conn, h http.Handler) {
		serve(hs, c.NetConn().(interface{ UnencryptedNetConn() net.Conn }).UnencryptedNetConn(), h)
	}
}

// readPreface reads the client's preface, in the time that a header may take.
func readPreface(c net.Conn, limit time.Duration) bool {
	if limit > 0 {
		timer := time.AfterFunc(limit, func() { _ = c.Close() })
		defer timer.Stop()
	}
	var got [len(preface)]byte
	_, err := io.ReadFull(c, got[:])
	return err == nil && string(got[:]) == preface
}

// wrapped is a connection without TLS within a *tls.Conn, as net/http hands it over.
type wrapped struct {
	net.Conn // nil: nobody uses TLS
	plain    net.Conn
}

// UnencryptedNetConn is what net/http asks for.
func (w wrapped) UnencryptedNetConn() net.Conn { return w.plain }

// noListener is a listener that ends at once.
type noListener struct{}

// Accept implements net.Listener.
func (noListener) Accept() (net.Conn, error) { return nil, errors.ErrUnsupported }

// Close implements net.Listener.
func (noListener) Close() error { return nil }

// Addr implements net.Listener.
func (noListener) Addr() net.Addr { return &net.TCPAddr{} }
