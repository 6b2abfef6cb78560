package web

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/idle"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// upstreamConn is a connection to an endpoint. At most one request is on it.
type upstreamConn struct {
	net.Conn
	idle.Slot[*upstreamConn] // tells for which requests it is

	reader   *bufio.Reader
	head     []byte // of the request, kept for its space
	used     bool   // has answered a request before
	look     func() (n int, err error)
	raw      syscall.RawConn // nil where it is not known
	received sock.Buffers    // the bound of what is received

	interrupt func()      // ends what waits for the endpoint
	stop      func() bool // stops the client's going away from interrupting; nil between requests
	bounded   bool        // what is read is a head
	room      int         // how many bytes more of it are read
}

// Read implements io.Reader.
func (u *upstreamConn) Read(b []byte) (int, error) {
	if !u.bounded {
		return u.Conn.Read(b)
	}
	if u.room <= 0 {
		return 0, http1.ErrLongHead
	}
	n, err := u.Conn.Read(b[:min(len(b), u.room)])
	u.room -= n
	return n, err
}

// roundTrip writes a request and reads the head of its answer.
func (u *upstreamConn) roundTrip(
	r *http.Request, interim *interimWriter, deadline time.Time,
) (*http.Response, error) {
	if err := u.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	u.stop = context.AfterFunc(r.Context(), u.interrupt)
	u.head = appendRequest(u.head[:0], r)
	if _, err := u.Write(u.head); err != nil {
		return nil, err
	}
	u.bounded, u.room = true, http1.AnswerHead
	defer func() { u.bounded = false }()
	for {
		response, err := http.ReadResponse(u.reader, r)
		switch {
		case err != nil:
			return nil, err
		case response.StatusCode > http.StatusSwitchingProtocols && response.StatusCode < http.StatusOK,
			response.StatusCode == http.StatusContinue:
			_ = interim.write(response.StatusCode, textproto.MIMEHeader(response.Header))
			continue
		case response.ContentLength < 0 || response.ContentLength > int64(u.reader.Buffered()):
			// More is to come, as slowly as it likes. The next request sets a deadline of its own.
			_ = u.SetReadDeadline(time.Time{})
			if r.Context().Err() != nil {
				u.interrupt() // which may have come before
			}
		}
		return response, judgeStatus(response, "")
	}
}

// free is whether nothing more is to be read or interrupted behind an answer, so that the connection may be kept.
func (u *upstreamConn) free() bool {
	free := u.stop() && u.reader.Buffered() == 0
	u.stop = nil
	return free
}

// Close implements io.Closer. It resets the connection, which else would hold its local port for a minute more
// (TIME-WAIT, RFC 9293 section 3.6.1): a request without a body leaves nothing that the endpoint could lose by that.
func (u *upstreamConn) Close() error {
	if u.stop != nil {
		u.stop()
	}
	if u.raw != nil {
		_ = u.raw.Control(func(fd uintptr) { sock.ResetOnClose(int(fd)) })
	}
	return u.Conn.Close()
}

// appendRequest writes the head of a request without a body. What net/http has parsed holds no line break or NUL,
// neither in the target nor in a header.
func appendRequest(b []byte, r *http.Request) []byte {
	b = append(append(append(b, r.Method...), ' '), r.RequestURI...)
	b = appendHeader(append(b, " HTTP/1.1\r\n"...), "Host", r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			b = appendHeader(b, name, value)
		}
	}
	return append(b, "\r\n"...)
}

func appendHeader(b []byte, name, value string) []byte {
	b = append(append(b, name...), ": "...)
	return append(append(b, value...), "\r\n"...)
}

const readerSize = 4 << 10

func newUpstreamConn(conn net.Conn, key idle.Key) *upstreamConn {
	u := &upstreamConn{Conn: conn, Slot: idle.NewSlot[*upstreamConn](key)}
	u.reader = bufio.NewReaderSize(u, readerSize)
	u.interrupt = func() { _ = conn.SetDeadline(time.Unix(1, 0)) }
	below := conn
	secured, isTLS := conn.(*tls.Conn)
	if isTLS {
		below = secured.NetConn()
	}
	if wire, ok := below.(syscall.Conn); ok {
		u.raw, _ = wire.SyscallConn() // nil on error
	}
	switch {
	case isTLS:
		u.look = lookInto(secured, u.raw)
	case u.raw != nil:
		u.look = lookAt(u.raw)
	}
	return u
}

// quiet is whether an idle connection is open and has nothing to be read.
func (u *upstreamConn) quiet() bool {
	if u.look == nil {
		return true
	}
	_, err := u.look()
	return errors.Is(err, unix.EAGAIN)
}

// lookAt returns a function that looks whether a connection has something to be read (n > 0), has ended (n = 0), or
// neither (EAGAIN). It takes nothing away, and allocates nothing.
func lookAt(raw syscall.RawConn) func() (n int, err error) {
	var n int
	var err error
	look := func(fd uintptr) { n, err = sock.Peek(int(fd)) }
	return func() (int, error) {
		if failure := raw.Control(look); failure != nil {
			return 0, failure
		}
		return n, err
	}
}

// lookInto is lookAt for TLS, where what is to be read may have been read of the connection below it, too. What it
// finds is taken away: nobody may use the connection then. The read deadline is in the past afterwards.
func lookInto(conn *tls.Conn, raw syscall.RawConn) func() (n int, err error) {
	below := func() (int, error) { return 0, errors.ErrUnsupported }
	if raw != nil {
		below = lookAt(raw)
	}
	return func() (int, error) {
		if n, err := below(); !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
		if err := conn.SetReadDeadline(time.Unix(1, 0)); err != nil {
			return 0, err
		}
		var one [1]byte
		n, err := conn.Read(one[:])
		if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, unix.EAGAIN
		}
		return n, err
	}
}
