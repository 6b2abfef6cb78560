package web

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/edge/reply"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/shaper"
	"github.com/tinkerbell/stack/pkg/record"
)

// observer admits a route's requests, shapes their answers, counts, times, logs and records them, and bounds stalls in
// their bodies.
type observer struct {
	next     http.Handler
	route    string
	port     uint16
	settings *Settings
	log      *slog.Logger
	metrics  *routeMetrics
	account  *admission.Charges
	lines    *loglimit.Clients // in the log
	sink     record.Sink       // nil takes no records
}

// ServeHTTP implements http.Handler.
func (o *observer) ServeHTTP(w http.ResponseWriter, r *http.Request) { o.serve(o.next, w, r) }

// serve has a handler answer a request.
func (o *observer) serve(next http.Handler, w http.ResponseWriter, r *http.Request) {
	seen := &response{ResponseWriter: w, request: r, sink: o.sink}
	seen.draft.Begin = time.Now()
	if o.sink != nil {
		seen.draft.Exchange = o.exchange(Client(r, o.settings.Trusted), seen.draft.Begin, r.URL.Path)
	}
	var under *conn // nil in HTTP/2, where others share the connection
	if r.ProtoMajor == 1 {
		under = connOfRequest(r)
	}
	if r.TLS != nil {
		seen.belowTLS = under
	}
	hasBody := r.Body != nil && r.Body != http.NoBody
	why := seen.enter(r, o.settings, o.account, hasBody)
	defer seen.giveBack()
	seen.setFlow(r, o.settings, under)
	if under != nil {
		under.inBody.Store(hasBody)
	}
	if hasBody {
		waiting := &stallReader{
			ReadCloser: r.Body, control: http.NewResponseController(w), stall: o.settings.Stall, under: under,
		}
		defer waiting.leave()
		r.Body = waiting
		if r.ProtoMajor == 1 {
			seen.body = waiting
		}
	}
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// There may have been a Content-Length too, which net/http has removed: whoever framed the request by it
		// sees another end. RFC 9112, section 6.1: close after the answer, so that nothing can hide behind it.
		w.Header().Set("Connection", "close")
	}
	o.metrics.began()
	defer func() {
		if under != nil {
			// net/http may still read the rest of a body that the handler left, under a deadline of its own: when that has
			// passed, the client is not late.
			under.inBody.Store(false)
		}
		o.end(seen, r, recover())
	}()
	if seen.noRoom = why != admission.Admitted; seen.noRoom {
		o.metrics.refused(why.String())
		w.Header().Set("Retry-After", "1")
		reply.Refuse(seen, r, http.StatusServiceUnavailable, reply.ResourceExhausted, noRoom)
		return
	}
	next.ServeHTTP(seen, r)
}

// end counts, logs and records a request. It panics again with trouble, the value of a panic of the handler.
func (o *observer) end(seen *response, r *http.Request, trouble any) {
	x := &seen.draft
	x.Code, x.Bytes = uint16(cmp.Or(seen.code, http.StatusOK)), uint64(seen.bytes)
	broken := trouble != nil && r.Context().Err() == nil && x.sendError == nil
	switch {
	case broken:
		// The proxy aborts so when an endpoint breaks off in the midst of a body: the client must see a torn
		// response, not a short one.
		o.metrics.failed(reasonTorn)
		x.torn(reasonTorn)
		if reply.IsGRPC(r) && seen.code == http.StatusOK {
			// A client of gRPC reads this: a stream that is reset would be an internal error, which nobody tries again.
			seen.Header().Set(trailerStatus, "14")
			seen.Header().Set(trailerMessage, "stack-proxy: the backend broke the connection")
			trouble = nil
		}
	case trouble != nil:
		o.metrics.failed(boot.ReasonClientGone)
		x.torn(seen.notTaken())
	}
	x.Took = time.Since(x.Begin)
	grpc := grpcCode(r, seen.Header(), x.Took, trouble != nil && !broken)
	if grpc != "" {
		o.metrics.handled(grpc)
	}
	faulty := broken || slices.Contains(grpcFaults, grpc)
	if !seen.noRoom && (x.failure != nil || o.logs(x.Code, faulty)) {
		x.Client, x.Method, x.Software = Client(r, o.settings.Trusted), r.Method, r.UserAgent()
		o.write(&x.Exchange, access{peerOf(r), r.Host, r.URL.Path, grpc, faulty, x.failure})
	}
	o.metrics.ended(int(x.Code), x.Took)
	seen.recordEnd(grpc)
	if trouble != nil {
		panic(trouble)
	}
}

// response is a client's answer as it is written, and what is to be known of its request at the end. ReadFrom goes
// through to net/http, or files would be copied in user space.
type response struct {
	http.ResponseWriter
	belowTLS *conn // the connection below TLS, which hides it from net/http; nil without TLS, and in HTTP/2
	code     int
	bytes    int64
	charged  charge
	// noRoom is set if there was none for the request: package admission logs how many there were.
	noRoom  bool
	request *http.Request
	sink    record.Sink
	draft   draft
	body    *stallReader // of a request in HTTP/1.1; nil where it has none
	flow    shaper.Flow  // in HTTP/2
	duplex  bool         // the answer may begin before the request's body has ended
}

// Unwrap lets http.ResponseController reach flushing and hijacking.
func (r *response) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// EnableFullDuplex is what http.ResponseController calls.
func (r *response) EnableFullDuplex() error {
	r.duplex = true
	return http.NewResponseController(r.ResponseWriter).EnableFullDuplex()
}

// Hijack implements http.Hijacker, for protocols that the endpoint switches to.
func (r *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if r.charged.conn != nil { // HTTP/1.1
		r.charged.conn.switched.Store(true)
	}
	c, buffered, err := http.NewResponseController(r.ResponseWriter).Hijack()
	if err != nil {
		return c, buffered, err
	}
	r.code = cmp.Or(r.code, http.StatusSwitchingProtocols)
	// A client may send before it has the answer (RFC 9110 section 7.8). httputil reads the connection alone.
	if n := buffered.Reader.Buffered(); n > 0 {
		early, _ := buffered.Reader.Peek(n)
		c = &earlyConn{Conn: c, early: bytes.Clone(early)}
	}
	return c, buffered, nil
}

// earlyConn is a connection of which some bytes have been read.
type earlyConn struct {
	net.Conn
	early []byte
}

// Read implements net.Conn.
func (c *earlyConn) Read(b []byte) (int, error) {
	if len(c.early) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.early)
	c.early = c.early[n:]
	return n, nil
}

// CloseWrite ends our side of the stream.
func (c *earlyConn) CloseWrite() error { return closeWrite(c.Conn) }

// WriteHeader implements http.ResponseWriter.
func (r *response) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
		r.recordLong(r.expected())
	}
	if r.duplex && code >= http.StatusOK && r.body != nil && !r.body.whole.Load() {
		// The rest of the body comes after the answer has begun. When net/http's server then reads to its end, it begins
		// to wait for the next request in a second goroutine, beside the one that serves the connection, and whichever
		// reads second panics: that may be the Transport's. RFC 9112, section 9.6: no other request after this answer.
		r.Header().Set("Connection", "close")
	}
	r.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (r *response) Write(b []byte) (int, error) {
	n, err := r.send(b)
	r.bytes += int64(n)
	r.wrote(err)
	return n, err
}

// wrote notes how writing went.
func (r *response) wrote(err error) {
	if err != nil {
		r.draft.sendError = err
	}
	r.recordLong(uint64(r.bytes))
}

// ReadFrom implements io.ReaderFrom.
func (r *response) ReadFrom(source io.Reader) (int64, error) {
	var n int64
	var err error
	switch {
	case r.flow.Shaper != nil:
		n, err = r.copyShared(source)
	case r.belowTLS != nil && isFile(source):
		n, err = r.belowTLS.copyFile(r.ResponseWriter, source)
	default:
		n, err = io.Copy(r.ResponseWriter, source)
	}
	r.bytes += n
	r.wrote(err)
	return n, err
}

// stallReader is a request's body whose client may pause, but not for ever unless stall is 0.
type stallReader struct {
	io.ReadCloser
	control *http.ResponseController
	stall   time.Duration
	armed   time.Time
	under   *conn // nil in HTTP/2
	late    atomic.Bool
	whole   atomic.Bool // read to its end

	// http.Transport may read on when the endpoint has answered and the handler has returned. In HTTP/2 the control is
	// gone then, and to use it is a panic; in HTTP/1.1 it is the next request's.
	mu   sync.Mutex
	over bool
}

// leave is called before the handler returns.
func (body *stallReader) leave() {
	body.mu.Lock()
	body.over = true
	body.mu.Unlock()
}

// wait sets the read deadline; zero is none.
func (body *stallReader) wait(deadline time.Time) error {
	body.mu.Lock()
	defer body.mu.Unlock()
	if body.over {
		return http.ErrBodyReadAfterClose
	}
	if body.under != nil && deadline.IsZero() {
		body.under.inBody.Store(false)
	}
	if err := body.control.SetReadDeadline(deadline); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// late is whether a request's client stalled in its body.
func late(r *http.Request) bool {
	if p, ok := r.Body.(*stallReader); ok && p.late.Load() {
		return true
	}
	under := connOfRequest(r)
	return under != nil && under.spent.Load()
}

// Read implements io.Reader.
func (body *stallReader) Read(b []byte) (int, error) {
	if now := time.Now(); body.stall > 0 && now.Sub(body.armed) > min(deadlineStep, body.stall/8) {
		body.armed = now
		if err := body.wait(now.Add(body.stall)); err != nil {
			return 0, err
		}
	}
	n, err := body.ReadCloser.Read(b)
	if errors.Is(err, io.EOF) {
		body.whole.Store(true)
		if body.stall > 0 {
			// The answer may take its time now. After any other error the deadline stays, or net/http would wait for
			// the rest of the body for ever.
			_ = body.wait(time.Time{})
		}
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		body.late.Store(true)
	}
	return n, err
}
