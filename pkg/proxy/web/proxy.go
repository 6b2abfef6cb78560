package web

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/edge/reply"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// pseudonym names this process in Via (RFC 9110, section 7.6.3), so that a request that comes back is recognized.
var pseudonym = func() string {
	id := make([]byte, 6)
	_, _ = rand.Read(id)
	return "stack-proxy-" + hex.EncodeToString(id)
}()

var viaHTTP11, viaHTTP10 = "1.1 " + pseudonym, "1.0 " + pseudonym

// proxy is a route's handler where endpoints answer: it makes the endpoint's request of the client's, and the client's
// answer of the endpoint's.
type proxy struct {
	route     string
	settings  *Settings
	log       *slog.Logger
	metrics   *routeMetrics
	transport *transport
	reverse   *httputil.ReverseProxy
}

// flushAfter is when a client gets what has come of an answer of known length, however long the rest takes. Of all
// others it gets each piece at once. A length that gRPC knows is 0: there, a flush would part the header, which has the
// call's status, from the end of the stream.
const flushAfter = 5 * time.Millisecond

// newProxy makes a proxy; with the connections of the one before, if there is one that can serve on.
func newProxy(
	route string, s *Settings, log *slog.Logger, metrics *routeMetrics, loops int, before *transport,
) *proxy {
	p := &proxy{
		route: route, settings: s, log: log, metrics: metrics, transport: newTransport(s, metrics, loops, before),
	}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		Transport:      p.transport,
		ModifyResponse: p.modify,
		BufferPool:     scratches{},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			t := tripOf(r)
			p.fail(w, t.asked, err, time.Since(t.begin))
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	if !s.GRPC {
		p.reverse.FlushInterval = flushAfter
	}
	return p
}

// scratches implements httputil.BufferPool.
type scratches struct{}

func (scratches) Get() []byte  { return sock.Borrow()[:] }
func (scratches) Put(b []byte) { (*sock.Scratch)(b).Return() }

// ServeHTTP implements http.Handler.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for _, via := range r.Header["Via"] {
		if strings.Contains(via, pseudonym) {
			p.fail(w, r, errLoop, 0)
			return
		}
	}
	t := &trip{
		asked: r, answer: w, begin: time.Now(), client: Client(r, p.settings.Trusted), draft: draftOf(w),
	}
	defer t.end() // also where the answer breaks off, which is a panic

	if r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 { // in HTTP/2 there is a Body all the same
		// An endpoint may answer before it has read all of the body. Without this, net/http would then read the rest
		// itself and throw it away.
		_ = http.NewResponseController(w).EnableFullDuplex()
		t.body = &retryBody{ReadCloser: r.Body, left: r.ContentLength}
		if r.ProtoMajor == 1 {
			_, t.body.slow = r.Body.(*stallReader)
		}
	}
	p.reverse.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tripKey{}, t)))
}

// rewrite makes the endpoint's request.
func (p *proxy) rewrite(r *httputil.ProxyRequest) {
	r.Out.Header, r.Out.Trailer = p.header(r.In), nil
	if asksToUpgrade(r.In) {
		r.Out.Header["Connection"], r.Out.Header["Upgrade"] = []string{"Upgrade"}, r.In.Header["Upgrade"]
	}
	r.Out.URL.RawQuery = r.In.URL.RawQuery // as it came: the backend judges it
}

// modify makes the client's answer of the endpoint's.
func (p *proxy) modify(response *http.Response) error {
	t := tripOf(response.Request)
	if response.StatusCode == http.StatusSwitchingProtocols {
		return nil
	}
	header := t.answer.Header() // over what gates have written, which is why ReverseProxy has nothing to add
	http1.SetAnswerHeader(header, response.Header)
	response.Header = nil
	if response.StatusCode == http.StatusNoContent {
		delete(header, "Content-Length") // RFC 9110, section 8.6
	}
	if header["Content-Type"] == nil {
		header["Content-Type"] = nil // or net/http would guess one
	}
	t.untilEnd(response.ContentLength)
	return nil
}

// asksToUpgrade is whether a client asks to go on in another protocol, which is not a version of HTTP. What it says
// then is not looked into, so by another version of HTTP it could tell the endpoint any client address.
func asksToUpgrade(r *http.Request) bool {
	if r.Header["Connection"] == nil || r.Header.Get("Upgrade") == "" {
		return false
	}
	for protocol := range strings.SplitSeq(strings.ToLower(r.Header.Get("Upgrade")), ",") {
		if protocol = strings.TrimSpace(protocol); protocol == "h2c" || strings.HasPrefix(protocol, "http/") {
			return false
		}
	}
	return true
}

// peerOf is the address of the connection's other end.
func peerOf(r *http.Request) netip.Addr {
	addr, _ := netip.ParseAddrPort(r.RemoteAddr)
	return addr.Addr().Unmap().WithZone("")
}

var errLoop = errors.New("the request has been here before: the backend leads back to this proxy")

// fail answers in the endpoint's place, and says which route and why. took is the time since the request began.
func (p *proxy) fail(w http.ResponseWriter, r *http.Request, err error, took time.Duration) {
	reason := failureOf(err)
	switch {
	case errors.Is(err, errLoop):
		reason = reasonLoop
	case late(r):
		reason = boot.ReasonClientStalled
	case errors.As(err, new(bodyError)):
		reason = boot.ReasonClientBody
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		reason = boot.ReasonClientGone
	}
	code := failures[reason].code
	p.metrics.failed(reason)
	draftOf(w).failed(reason, err)
	if reason == boot.ReasonClientGone { // nobody reads it; it is for the counters
		if reply.IsGRPC(r) {
			reply.Write(w, r, code, reply.Cancelled, "the client has gone")
		} else {
			w.WriteHeader(code)
		}
		return
	}
	if code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	text, status := p.sayFailure(reason), reply.Unavailable
	switch {
	case reason == boot.ReasonClientBody:
		status = reply.InvalidArgument
	case wasCancelled(err):
		text, status = textCancelled, cancelledCode(r, took)
	}
	reply.Write(w, r, code, status, text)
}

// reasonLoop is that of a request that has been here before.
const reasonLoop = "loop"

// failures are the answers to requests that no endpoint has answered, by the reason: a code, and words that a client,
// or the person behind it, can do something with. Addresses inside the cluster are for the log only.
var failures = map[string]struct {
	code int
	text string
}{
	reasonLoop:               {http.StatusLoopDetected, errLoop.Error()},
	boot.ReasonClientGone:    {http1.CodeGone, ""}, // nobody reads it
	boot.ReasonClientStalled: {http.StatusRequestTimeout, "the request's body did not come in time"},
	boot.ReasonClientBody:    {http.StatusBadRequest, "the request's body is malformed or incomplete"},
	"certificate_ca":         {http.StatusBadGateway, "the backend's certificate is by another CA than the route's"},
	"certificate_name":       {http.StatusBadGateway, "the backend's certificate is for another name than the route's"},
	"certificate_time":       {http.StatusBadGateway, "the backend's certificate has expired, or is not valid yet"},
	"no_tls":                 {http.StatusBadGateway, "the backend does not speak TLS on that port"},
	"refused":                {http.StatusBadGateway, "the backend refused the connection"},
	boot.ReasonTimeout:       {http.StatusGatewayTimeout, "the backend did not answer in time"},
	"no_endpoint":            {http.StatusServiceUnavailable, "the backend's name resolves to nothing (yet)"},
	"resources": {
		http.StatusServiceUnavailable,
		"stack-proxy has no descriptor, memory or local port left for a connection to the backend",
	},
	"error": {http.StatusBadGateway, "the backend broke the connection (Bad Gateway)"},
}

// failureOf is the reason of a request that no endpoint has answered.
func failureOf(err error) string {
	var timeout net.Error
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return "certificate_ca"
	case errors.As(err, new(x509.HostnameError)):
		return "certificate_name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "certificate_time"
	case errors.As(err, new(tls.RecordHeaderError)):
		return "no_tls"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, os.ErrDeadlineExceeded):
		return boot.ReasonTimeout
	case errors.Is(err, endpoint.ErrNone):
		return "no_endpoint"
	case sock.Exhausted(err):
		return "resources"
	default:
		return "error"
	}
}

// sayFailure is the text for the client.
func (p *proxy) sayFailure(reason string) string {
	return fmt.Sprintf("stack-proxy: route %s: %s", p.route, failures[reason].text)
}
