package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/edge/reply"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// mostAttempts is how many endpoints are asked to take a request.
const mostAttempts = 3

const (
	// upstreamsKept is how many idle connections the engine keeps to a route's endpoints.
	upstreamsKept = 256
	// upstreamIdle is for how long.
	upstreamIdle = 60 * time.Second
)

// idleLimits are those of one of several engines that share upstreamsKept. One client may have half of it.
func idleLimits(engines int) http1.IdleLimits {
	total := max(upstreamsKept/engines, 1)
	return http1.IdleLimits{Total: total, PerKey: max(total/2, 1), Age: upstreamIdle}
}

// transport is the way of a [httputil.ReverseProxy] to a route's endpoints, by one [http.Transport]. It chooses an
// endpoint, sends it the request, and chooses another one as long as none has seen anything of the request
// ([endpoint.Pool.Try]).
type transport struct {
	endpoints *endpoint.Pool
	metrics   *routeMetrics
	scheme    string
	standard  *http.Transport
	idle      *http1.Upstreams // the engine's
}

// newTransport makes a transport; with the connections of the one before, if there is one that can serve on.
func newTransport(s *Settings, metrics *routeMetrics, loops int, before *transport) *transport {
	t := &transport{endpoints: s.Pool, metrics: metrics, scheme: "http"}
	if s.Secure != nil {
		t.scheme = "https"
	}
	if before != nil {
		t.idle, t.standard = before.idle, before.standard
	} else {
		t.idle, t.standard = http1.NewUpstreams(idleLimits(loops)), newHTTPTransport(s)
	}
	return t
}

// shares reports whether two transports have the same connections.
func (t *transport) shares(other *transport) bool { return t.standard == other.standard }

// close gives up the connections to the endpoints; those in use when they come back.
func (t *transport) close() {
	t.standard.CloseIdleConnections()
	t.idle.Close()
}

func newHTTPTransport(s *Settings) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(!s.GRPC)
	protocols.SetUnencryptedHTTP2(s.GRPC && s.Secure == nil)
	protocols.SetHTTP2(s.GRPC && s.Secure != nil)
	return &http.Transport{
		DialContext:    dial(s), // only this or the next is asked
		DialTLSContext: dial(s),
		Protocols:      &protocols,
		// Of an answer with more behind it, http.Transport may give the rest to the next request, if that takes the
		// connection before it has looked: one machine would read another's data. HTTP/2 names each answer's request.
		DisableKeepAlives:      !s.GRPC,
		DisableCompression:     true, // what the client did not ask for, the backend is not asked for
		MaxIdleConnsPerHost:    512,
		IdleConnTimeout:        90 * time.Second,
		ResponseHeaderTimeout:  orNone(s.Response),
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: http1.AnswerHead,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: upstreamWindow},
		// No HTTP/2 pings: grpc-go's servers take more than one in five minutes for abuse, and end the connection with
		// the streams that idle on it. TCP's keepalive finds endpoints that are gone.
	}
}

// dial opens connections to endpoints, by TLS where they speak it, within the time of an attempt.
func dial(s *Settings) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: orNone(s.Dial), Control: sock.SmallReceiveBuffer}
	dialer.SetMultipathTCP(false)
	connect := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &upstreamConn{Conn: conn}, nil
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

// trip is a request on its way to an endpoint, and its answer on the way back.
type trip struct {
	asked  *http.Request
	answer http.ResponseWriter
	begin  time.Time
	client netip.Addr // the endpoint is chosen for it
	draft  *draft
	body   *retryBody // nil, which is whole, if the request has none

	open io.Closer // the endpoint's answer
	old  *conn     // an answer is under way of which only the connection's end tells the client that it is whole
}

type tripKey struct{}

func tripOf(r *http.Request) *trip { return r.Context().Value(tripKey{}).(*trip) }

// end is called when the handler has done with the answer, or will not take one.
func (t *trip) end() {
	if t.body != nil {
		t.body.closed.Store(true)
	}
	if t.open != nil {
		_ = t.open.Close()
	}
}

// untilEnd has an answer that is torn end with a reset, where its length is not known to a client of HTTP/1.0.
func (t *trip) untilEnd(length int64) {
	if c := connOfRequest(t.asked); c != nil && t.asked.ProtoMajor == 1 && t.asked.ProtoMinor == 0 && length < 0 {
		c.untilEnd.Store(true)
		t.old = c
	}
}

// RoundTrip implements http.RoundTripper, for requests whose context has a trip.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	trip := tripOf(r)
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
		if fault := clientFault(trip.asked, trip.body); fault != nil {
			return endpoint.NotItsFault, fault
		}
		noPort := sock.NoLocalPort(err)
		if !noPort && (sock.Exhausted(err) || trip.body.partial() || wasCancelled(err)) {
			return endpoint.NotItsFault, err
		}
		t.idle.Drop(e.Addr) // each may be broken, or has a local port
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
	body := &answerBody{trip: trip, endpoint: e}
	var conn *upstreamConn
	trace := &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) {
			if t.standard.DisableKeepAlives { // or others are on it, too
				conn = upstreamBelow(got.Conn)
			}
			if trip.body != nil {
				trip.body.given.Store(true)
			} else if conn != nil {
				conn.bodiless = true
			}
		},
	}
	// Interim answers end here, as in the engine: firmware expects none. ReverseProxy's own trace would pass them on.
	out := r.WithContext(httptrace.WithClientTrace(context.WithValue(trip.asked.Context(), tripKey{}, trip), trace))
	target := *r.URL
	target.Scheme, target.Host = t.scheme, e.Addr.String()
	out.URL, out.Body = &target, nil
	if trip.body != nil {
		out.Body = trip.body
	}
	response, err := t.standard.RoundTrip(out)
	if err == nil {
		if err = judgeStatus(response, r.Header.Get("Upgrade")); err != nil {
			_ = response.Body.Close()
		}
	}
	if err != nil {
		return nil, err
	}
	if c := connOfRequest(trip.asked); c != nil && trip.asked.ProtoMajor == 1 && response.ContentLength > longAnswer {
		c.lengthen(conn)
	}
	body.ReadCloser = response.Body
	response.Body = body
	if w, ok := body.ReadCloser.(halfCloser); ok {
		response.Body = upgradedBody{body, w}
	}
	trip.open = response.Body
	return response, nil
}

// clientFault is the error of a request that failed because of its client, which is no fault of the endpoint: the
// client went away, or its body is broken. It is nil for any other failure.
func clientFault(r *http.Request, body *retryBody) error {
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

// answerBody is the body of an answer. Closing it ends the use of the endpoint.
type answerBody struct {
	io.ReadCloser
	trip     *trip
	endpoint *endpoint.Endpoint
	closing  sync.Once
}

// Read implements io.Reader.
func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == nil {
		return n, nil
	}
	t := b.trip
	if errors.Is(err, io.EOF) {
		if t.old != nil {
			t.old.untilEnd.Store(false)
		}
		return n, err
	}
	if t.old != nil { // before TLS says that this is the end
		_ = t.old.Close()
	}
	if reply.IsGRPC(t.asked) && wasCancelled(err) {
		header := t.answer.Header()
		header[trailerStatus] = []string{strconv.Itoa(int(cancelledCode(t.asked, time.Since(t.begin))))}
		header[trailerMessage] = []string{textCancelled}
		return n, io.EOF
	}
	return n, err
}

// Close implements io.Closer.
func (b *answerBody) Close() (err error) {
	b.closing.Do(func() {
		err = b.ReadCloser.Close()
		b.endpoint.Release()
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
