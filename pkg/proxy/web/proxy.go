package web

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/http/httputil"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/pkg/edge/reply"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// attempts is how many endpoints are asked to take a request.
const attempts = 3

// pseudonym names this process in Via (RFC 9110, section 7.6.3), so that a request that comes back is recognized.
var pseudonym = func() string {
	id := make([]byte, 6)
	_, _ = rand.Read(id)
	return "stack-proxy-" + hex.EncodeToString(id)
}()

// proxy hands requests to the pool's endpoints.
type proxy struct {
	route     string
	settings  *Settings
	log       *slog.Logger
	metrics   *routeMetrics
	transport *http.Transport
	upstreams *upstreamPool
	reverse   *httputil.ReverseProxy
}

// newProxy makes a proxy; with the transport of the one before, if there is one that can serve on.
func newProxy(
	route string, s *Settings, log *slog.Logger, metrics *routeMetrics, loops int, before *proxy,
) *proxy {
	p := &proxy{route: route, settings: s, log: log, metrics: metrics}
	if before != nil {
		p.transport, p.upstreams = before.transport, before.upstreams
	} else {
		p.transport, p.upstreams = newTransport(s), newUpstreamPool(s, loops)
	}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:      p.rewrite,
		Transport:    p,
		ErrorHandler: p.fail,
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BufferPool:   buffers{},
	}
	// No FlushInterval: answers without a length, as those of gRPC are, are flushed at once anyway, and one of trailers
	// only must not be flushed before its end.
	return p
}

func newTransport(s *Settings) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(!s.GRPC)
	protocols.SetUnencryptedHTTP2(s.GRPC && s.Secure == nil)
	protocols.SetHTTP2(s.GRPC && s.Secure != nil)
	kept := 512
	if !s.GRPC {
		// None. Of an answer with more behind it, Transport may give the rest to the next request, if that takes the
		// connection before it has looked: one machine would read another's data. The direct ways look first.
		kept = -1
	}
	return &http.Transport{
		DialContext:            dial(s, tellingEnd), // only this or the next is asked
		DialTLSContext:         dial(s, tellingEnd),
		Protocols:              &protocols,
		DisableCompression:     true, // what the client did not ask for, the backend is not asked for
		MaxIdleConnsPerHost:    kept,
		IdleConnTimeout:        90 * time.Second,
		ResponseHeaderTimeout:  atLeast(s.Response),
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: answerHead,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: upstreamWindow},
		// No HTTP/2 pings: grpc-go's servers take more than one in five minutes for abuse, and end the connection with
		// the streams that idle on it. TCP's keepalive finds endpoints that are gone.
	}
}

// dial opens connections to endpoints, by TLS where they speak it, within the time of an attempt. What is below TLS
// goes by wrap, if that is given.
func dial(s *Settings, wrap func(net.Conn) net.Conn) func(ctx context.Context, network, addr string) (net.Conn, error) {
	dialer := &net.Dialer{Timeout: atLeast(s.Dial), Control: sock.SmallReceiveBuffer}
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

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for _, via := range r.Header["Via"] {
		if strings.Contains(via, pseudonym) {
			p.fail(w, r, errLoop)
			return
		}
	}
	if begun := takeAttempt(r); begun != nil || simple(r) && !p.settings.GRPC {
		p.serveDirect(w, r, begun)
		return
	}
	// An endpoint may answer before it has read all of the body. Without this, net/http would then read the rest
	// itself and throw it away.
	_ = http.NewResponseController(w).EnableFullDuplex()
	u := &use{outcome: outcomeOf(w)}
	defer u.end() // also where ReverseProxy panics before it closes the answer
	r = r.WithContext(context.WithValue(r.Context(), useKey{}, u))
	if r.ProtoMajor == 2 {
		u.untraced = r.Context()
	} else {
		u.client, _ = r.Body.(*stallReader)
	}
	p.reverse.ServeHTTP(w, r)
}

// close gives up the connections to the endpoints; those in use when they come back.
func (p *proxy) close() {
	p.transport.CloseIdleConnections()
	p.upstreams.close()
}

// rewrite turns the client's request into the endpoint's. The Host stays the client's; RoundTrip sets the address.
func (p *proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.URL.Scheme = "http"
	if p.settings.Secure != nil {
		r.Out.URL.Scheme = "https"
	}
	if r.In.ProtoMajor == 2 && r.Out.Body != nil {
		// ReverseProxy hides Close, for HTTP/1.1 could wait in it. A stream must be woken so: its endpoint may be gone
		// while its client is silent for hours.
		r.Out.Body = r.In.Body
	}
	r.Out.URL.RawQuery = r.In.URL.RawQuery // as it came: the backend judges it
	if toHTTP(r.Out.Header.Get("Upgrade")) {
		r.Out.Header.Del("Upgrade")
		r.Out.Header.Del("Connection")
	}
	dropAliases(r.Out.Header)
	// Trailers of a request are dropped (RFC 9110, section 6.5.1): they could say what its header may not.
	r.Out.Trailer = nil
	newForwardedHeaders(r.In, peerOf(r.In), p.settings.Trusted).set(r.Out.Header)
	via := fmt.Sprintf("%d.%d %s", r.In.ProtoMajor, r.In.ProtoMinor, pseudonym)
	r.Out.Header["Via"] = append(r.Out.Header["Via"], via)
}

// toHTTP is whether a client asks to go on in another version of HTTP. What it says then is not looked into, so it
// could tell the endpoint any address of its own.
func toHTTP(upgrade string) bool {
	for protocol := range strings.SplitSeq(strings.ToLower(upgrade), ",") {
		if protocol = strings.TrimSpace(protocol); protocol == "h2c" || strings.HasPrefix(protocol, "http/") {
			return true
		}
	}
	return false
}

// peerOf is the address of the connection's other end.
func peerOf(r *http.Request) netip.Addr {
	addr, _ := netip.ParseAddrPort(r.RemoteAddr)
	return addr.Addr().Unmap().WithZone("")
}

// RoundTrip implements http.RoundTripper: it asks one endpoint, and another one as long as none has seen anything of
// the request.
func (p *proxy) RoundTrip(r *http.Request) (*http.Response, error) {
	if u, ok := r.Context().Value(useKey{}).(*use); ok && u.untraced != nil {
		r = r.WithContext(u.untraced)
	}
	client := peerOf(r)
	if real, err := netip.ParseAddr(r.Header.Get(headerRealIP)); err == nil {
		client = real
	}
	var k *retryBody
	if body := r.Body; body != nil && body != http.NoBody {
		k = &retryBody{ReadCloser: body}
		r = r.WithContext(httptrace.WithClientTrace(r.Context(), traceUpload(r, k)))
		r.Body = k
	}
	var tried []*endpoint.Endpoint
	var failures []error
	for {
		e, err := p.settings.Pool.Acquire(client, tried...)
		if err != nil {
			if len(failures) == 0 {
				failures = []error{err}
			}
			return nil, errors.Join(failures...)
		}
		if len(tried) > 0 {
			p.metrics.retried()
		}
		response, err := p.ask(r, e)
		switch {
		case err == nil:
			return response, nil
		case k.isLost(): // err may be what woke the reader
			err = errLost
		}
		if fault := clientFault(r, k); fault != nil {
			return nil, fault
		}
		failures = append(failures, err)
		if sock.Exhausted(err) || k.partial() {
			return nil, errors.Join(failures...)
		}
		e.Failed(err)
		tried = append(tried, e)
		var dial *net.OpError
		if !errors.As(err, &dial) || dial.Op != "dial" || len(tried) == attempts {
			return nil, errors.Join(failures...)
		}
	}
}

// ask sends the request to one endpoint. The endpoint is released with the answer's body, or here with an error.
func (p *proxy) ask(r *http.Request, e *endpoint.Endpoint) (*http.Response, error) {
	u, used := r.Context().Value(useKey{}).(*use)
	if used {
		u.outcome.sentTo(e.Addr)
	}
	r.URL.Host = e.Addr.String()
	response, err := p.transport.RoundTrip(r)
	if err == nil {
		if err = judgeStatus(response, r.Header.Get("Upgrade")); err != nil {
			_ = response.Body.Close()
		}
	}
	if err != nil {
		e.Release()
		return nil, err
	}
	e.Succeeded()
	response.Body = release(response.Body, e)
	if used {
		u.body = response.Body
	}
	return response, nil
}

// clientFault is the error of a request that failed because of its client, which is no fault of the endpoint: the
// client went away, or its body is broken. It is nil for any other failure.
func clientFault(r *http.Request, k *retryBody) error {
	if k.isLost() {
		return nil
	}
	switch gone := r.Context().Err(); {
	case gone != nil && r.ProtoMajor == 1 && k.partial(): // it may have closed its side only, and read an answer
		return bodyError{io.ErrUnexpectedEOF}
	case gone != nil:
		return gone
	}
	if fault := k.broken(); fault != nil {
		return bodyError{fault}
	}
	return nil
}

var errSwitched = errors.New("the endpoint switched to a protocol that it was not asked for")

var errLoop = errors.New("the request has been here before: the backend leads back to this proxy")

// fail answers for the endpoint, and says which route and why.
func (p *proxy) fail(w http.ResponseWriter, r *http.Request, err error) {
	code, reason := http.StatusBadGateway, "error"
	var timeout net.Error
	switch {
	case errors.Is(err, errLoop):
		code, reason = http.StatusLoopDetected, "loop"
	case late(r):
		code, reason = http.StatusRequestTimeout, reasonStalled
	case errors.As(err, new(bodyError)):
		code, reason = http.StatusBadRequest, reasonBody
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		code, reason = 499, reasonGone // nobody reads it; the code is nginx's, for the counters
	case errors.Is(err, syscall.ECONNREFUSED):
		reason = "refused"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, os.ErrDeadlineExceeded):
		code, reason = http.StatusGatewayTimeout, "timeout"
	case errors.Is(err, endpoint.ErrNone):
		code, reason = http.StatusServiceUnavailable, "no_endpoint"
	}
	p.metrics.failed(reason)
	outcomeOf(w).failed(reason)
	if reason != reasonGone {
		p.log.Warn("request failed", "code", code, "reason", reason, "method", r.Method, "path", r.URL.Path,
			"client", peerOf(r), "error", err)
	}
	text := fmt.Sprintf("stack-proxy: route %s: %s", p.route, explain(code, reason))
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	status := reply.Unavailable
	switch reason {
	case reasonGone:
		status = reply.Cancelled // nobody reads it
	case reasonBody:
		status = reply.InvalidArgument
	}
	reply.Write(w, r, code, status, text)
}

// explain says in words what a client, or the person behind it, can do something with. Addresses inside the cluster
// are for the log only.
func explain(code int, reason string) string {
	switch reason {
	case "loop":
		return errLoop.Error()
	case reasonStalled:
		return "the request's body did not come in time"
	case reasonBody:
		return "the request's body is malformed or incomplete"
	case "refused":
		return "the backend refused the connection"
	case "timeout":
		return "the backend did not answer in time"
	case "no_endpoint":
		return "the backend's name resolves to nothing (yet)"
	default:
		return "the backend broke the connection (" + http.StatusText(code) + ")"
	}
}

// buffers are the bodies' copy buffers.
type buffers struct{}

var bufferPool = sync.Pool{New: func() any { return new([32 << 10]byte) }}

func (buffers) Get() []byte  { return bufferPool.Get().(*[32 << 10]byte)[:] }
func (buffers) Put(b []byte) { bufferPool.Put((*[32 << 10]byte)(b)) }
