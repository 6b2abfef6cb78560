package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/idle"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// mostAttempts is how many endpoints are asked to take a request.
const mostAttempts = 3

// transport is the one way from net/http's server to a route's endpoints. It chooses an endpoint, sends it the
// request, and chooses another one as long as none has seen anything of the request ([endpoint.Pool.Try]). A GET
// or HEAD without a body, of a route that is not gRPC, goes by an idle connection, all others by http.Transport.
type transport struct {
	endpoints *endpoint.Pool
	metrics   *routeMetrics
	grpc      bool
	scheme    string
	idle      *idlePool
	standard  *http.Transport // of net/http, for what does not go by idle connections

	idleInLoops *http1.Upstreams // the engine's
}

// newTransport makes a transport; with the connections of the one before, if there is one that can serve on.
func newTransport(s *Settings, metrics *routeMetrics, loops int, before *transport) *transport {
	t := &transport{endpoints: s.Pool, metrics: metrics, grpc: s.GRPC, scheme: "http"}
	if s.Secure != nil {
		t.scheme = "https"
	}
	if before != nil {
		t.idle, t.idleInLoops, t.standard = before.idle, before.idleInLoops, before.standard
	} else {
		t.idle, t.idleInLoops, t.standard = newIdlePool(s), http1.NewUpstreams(idleLimits(loops)), newHTTPTransport(s)
	}
	return t
}

// shares reports whether two transports have the same connections.
func (t *transport) shares(other *transport) bool { return t.standard == other.standard }

// close gives up the connections to the endpoints; those in use when they come back.
func (t *transport) close() {
	t.standard.CloseIdleConnections()
	t.idle.close()
	t.idleInLoops.Close()
}

// drop closes the idle connections to an endpoint.
func (t *transport) drop(endpoint netip.AddrPort) {
	t.idle.drop(endpoint)
	t.idleInLoops.Drop(endpoint)
}

func newHTTPTransport(s *Settings) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(!s.GRPC)
	protocols.SetUnencryptedHTTP2(s.GRPC && s.Secure == nil)
	protocols.SetHTTP2(s.GRPC && s.Secure != nil)
	idlePerHost := 512
	if !s.GRPC {
		// None. Of an answer with more behind it, http.Transport may give the rest to the next request, if that takes the
		// connection before it has looked: one machine would read another's data. idlePool looks first.
		idlePerHost = -1
	}
	return &http.Transport{
		DialContext:            dial(s, tellingEnd), // only this or the next is asked
		DialTLSContext:         dial(s, tellingEnd),
		Protocols:              &protocols,
		DisableCompression:     true, // what the client did not ask for, the backend is not asked for
		MaxIdleConnsPerHost:    idlePerHost,
		IdleConnTimeout:        90 * time.Second,
		ResponseHeaderTimeout:  orNone(s.Response),
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: http1.AnswerHead,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: upstreamWindow},
		// No HTTP/2 pings: grpc-go's servers take more than one in five minutes for abuse, and end the connection with
		// the streams that idle on it. TCP's keepalive finds endpoints that are gone.
	}
}

// dial opens connections to endpoints, by TLS where they speak it, within the time of an attempt. What is below TLS
// goes by wrap, if that is given.
func dial(s *Settings, wrap func(net.Conn) net.Conn) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: orNone(s.Dial), Control: sock.SmallReceiveBuffer}
	dialer.SetMultipathTCP(false)
	connect := dialer.DialContext
	if wrap != nil {
		connect = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return wrap(conn), nil
		}
	}
	if s.Secure == nil {
		return connect
	}
	secure, limit, protocol := s.Secure, s.Dial, "http/1.1"
	if s.GRPC {
		protocol = "h2"
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := connect(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		if limit > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, limit)
			defer cancel()
		}
		secured, err := secure.Client(ctx, conn, protocol)
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
		return secured, nil
	}
}

// trip is what a transport has to know of a request, and what is left of it for the handler to end.
type trip struct {
	client  netip.Addr // the endpoint is chosen for it, and it may have connections of its own
	draft   *draft
	interim *interimWriter // nil drops interim answers
	upload  *stallReader   // the client's body in HTTP/1.1

	body   *retryBody // nil, which is whole, if the request has none
	answer io.Closer
}

type tripKey struct{}

// end is called when the handler has done with the answer, or will not take one.
func (t *trip) end() {
	if t.body != nil {
		t.body.closed.Store(true)
	}
	if t.answer != nil {
		_ = t.answer.Close()
	}
}

// RoundTrip implements http.RoundTripper, for requests whose context has a trip.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	trip := r.Context().Value(tripKey{}).(*trip)
	if r.Body != nil && r.Body != http.NoBody {
		trip.body = &retryBody{ReadCloser: r.Body, upload: trip.upload}
	}
	var response *http.Response
	_, err := t.endpoints.Try(trip.client, mostAttempts, func(e *endpoint.Endpoint, tried int) (endpoint.Result, error) {
		if tried > 0 {
			t.metrics.retried()
		}
		trip.draft.sentTo(e.Addr)
		var err error
		if response, err = t.ask(r, trip, e); err == nil { //nolint:bodyclose // by trip.end
			return endpoint.Taken, nil
		}
		if trip.body.endpointLeft() {
			err = errLost // err may only be the deadline that stallReader.wake has set
		}
		if fault := clientFault(r, trip.body); fault != nil {
			return endpoint.NotItsFault, fault
		}
		noPort := sock.NoLocalPort(err)
		if !noPort && (sock.Exhausted(err) || trip.body.partial() || wasCancelled(err)) {
			return endpoint.NotItsFault, err
		}
		t.drop(e.Addr) // each may be broken, or has a local port
		if noPort {
			return endpoint.Unreached, err
		}
		if dial := (*net.OpError)(nil); errors.As(err, &dial) && dial.Op == "dial" {
			return endpoint.Unseen, err
		}
		return endpoint.Failed, err
	})
	return response, err
}

// ask sends the request to one endpoint, whose use ends with the answer's body.
func (t *transport) ask(r *http.Request, trip *trip, e *endpoint.Endpoint) (*http.Response, error) {
	body := &answerBody{endpoint: e}
	var response *http.Response
	var err error
	if !t.grpc && bodiless(r) {
		body.pool = t.idle
		response, body.conn, err = t.idle.roundTrip(r, idle.PerClient(e.Addr, trip.client), trip.interim)
	} else if response, err = t.standard.RoundTrip(t.forHTTPTransport(r, trip, e.Addr)); err == nil {
		if err = judgeStatus(response, r.Header.Get("Upgrade")); err != nil {
			_ = response.Body.Close()
		}
	}
	if err != nil {
		return nil, err
	}
	if body.conn != nil {
		body.last = response.Close
		expectLong(r, response.ContentLength, body.conn)
	}
	body.ReadCloser = response.Body
	response.Body = body
	if w, ok := body.ReadCloser.(halfCloser); ok {
		response.Body = upgradedBody{body, w}
	}
	trip.answer = response.Body
	return response, nil
}

// bodiless is whether a request goes by idle connections: it may be sent again, and needs nothing but its head.
func bodiless(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && (r.Body == nil || r.Body == http.NoBody) &&
		r.Header["Upgrade"] == nil && r.Header["Expect"] == nil && r.Header["Te"] == nil
}

// forHTTPTransport is the request to one endpoint as http.Transport wants it.
func (t *transport) forHTTPTransport(r *http.Request, trip *trip, to netip.AddrPort) *http.Request {
	trace := &httptrace.ClientTrace{}
	if trip.interim != nil {
		trace.Got1xxResponse = trip.interim.write
	}
	if trip.body != nil {
		trace.GotConn = func(got httptrace.GotConnInfo) { trip.body.goesTo(r.Context(), got.Conn) }
	}
	r = r.WithContext(httptrace.WithClientTrace(r.Context(), trace))
	target := *r.URL
	target.Scheme, target.Host = t.scheme, to.String()
	r.URL, r.Body = &target, nil
	if trip.body != nil {
		r.Body = trip.body
	}
	return r
}

// clientFault is the error of a request that failed because of its client, which is no fault of the endpoint: the
// client went away, or its body is broken. It is nil for any other failure.
func clientFault(r *http.Request, body *retryBody) error {
	if body.endpointLeft() {
		return nil
	}
	switch gone := r.Context().Err(); {
	case gone != nil && r.ProtoMajor == 1 && body.partial(): // it may have closed its side only, and read an answer
		return bodyError{io.ErrUnexpectedEOF}
	case gone != nil:
		return gone
	}
	if fault := body.broken(); fault != nil {
		return bodyError{fault}
	}
	return nil
}

// judgeStatus is an error where an answer's status cannot be passed on: net/http's server panics for codes of other
// than three digits, and below 100. What an endpoint switches to must have been asked for; ReverseProxy compares with
// the upgrade that it sent, as ASCII.
func judgeStatus(response *http.Response, upgrade string) error {
	switch code := response.StatusCode; {
	case code < http.StatusContinue || code > 999:
		return http1.ErrStatus
	case code != http.StatusSwitchingProtocols:
		return nil
	}
	answered := response.Header.Get("Upgrade")
	if upgrade == "" || len(answered) != len(upgrade) || !strings.EqualFold(answered, upgrade) {
		return http1.ErrSwitched
	}
	return nil
}

// answerBody is the body of an answer. Closing it ends the use of the endpoint and of its connection.
type answerBody struct {
	io.ReadCloser
	endpoint *endpoint.Endpoint
	pool     *idlePool
	conn     *upstreamConn // of the pool; nil is http.Transport's
	last     bool          // no other answer comes on the connection
	ended    bool
	closing  sync.Once
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended = true
	}
	return n, err
}

// pending is whether the next read may have to wait for the endpoint for long, though the answer's head is there.
func (b *answerBody) pending(length int64) bool {
	switch {
	case b.ReadCloser == http.NoBody:
		return false
	case b.conn != nil:
		return b.conn.reader.Buffered() == 0
	default:
		return length < 0
	}
}

// Close implements io.Closer.
func (b *answerBody) Close() (err error) {
	b.closing.Do(func() {
		defer b.endpoint.Release()
		switch {
		case b.conn == nil:
			err = b.ReadCloser.Close()
		case b.ended && !b.last && b.conn.free():
			b.pool.put(b.conn)
		default:
			err = b.conn.Close()
		}
	})
	return err
}

// upgradedBody is a stream of another protocol, whose two directions end on their own.
type upgradedBody struct {
	*answerBody
	halfCloser
}

type halfCloser interface {
	io.Writer
	CloseWrite() error
}

// interimWriter passes interim answers on until the answer itself has come. http.Transport may tell of one later.
type interimWriter struct {
	mu sync.Mutex
	w  http.ResponseWriter // nil: the answer has come
}

// write is an [httptrace.ClientTrace]'s Got1xxResponse. net/http's server itself tells the client to continue, when the
// request's body is read.
func (i *interimWriter) write(code int, header textproto.MIMEHeader) error {
	if i == nil || code == http.StatusContinue {
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.w == nil {
		return nil
	}
	answer := i.w.Header()
	before := answer.Clone()
	http1.SetAnswerHeader(answer, http.Header(header))
	i.w.WriteHeader(code)
	clear(answer)
	for name, values := range before {
		answer[name] = values
	}
	return nil
}

func (i *interimWriter) end() {
	if i != nil {
		i.mu.Lock()
		i.w = nil
		i.mu.Unlock()
	}
}
