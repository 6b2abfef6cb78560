package web

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/idle"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
)

// A request without a body over HTTP/1.1, which is nearly all that firmware sends, goes the direct way: the client's
// own goroutine writes it to a kept connection and reads the answer from it. net/http's Transport hands each request
// to two goroutines and back, and ReverseProxy copies it twice; without them a small request costs a third less
// (docs/benchmarks.md). Everything else - bodies, upgrades, HTTP/2, expectations - goes by ReverseProxy. The plainest
// requests do not come here either: see [plain].

// attempt is a request that was sent, or failed, before this code got to see it.
type attempt struct {
	start    time.Time // of the request
	endpoint *endpoint.Endpoint
	upstream *upstream // nothing of its answer has been taken
	err      error     // why there is none
}

// give lets go of an attempt that nobody takes up.
func (a *attempt) give() {
	if a.upstream != nil {
		_ = a.upstream.Close()
	}
	a.endpoint.Release()
}

// simple is whether a request may go the direct way.
func simple(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.ProtoMajor == 1 && r.ContentLength == 0 &&
		len(r.TransferEncoding) == 0 && r.Header["Upgrade"] == nil && r.Header["Expect"] == nil && r.Header["Te"] == nil &&
		strings.HasPrefix(r.RequestURI, "/")
}

// serveDirect answers a simple request.
func (p *proxy) serveDirect(w http.ResponseWriter, r *http.Request) {
	client := peerOf(r)
	who := claimsOf(r, client, p.settings.Trusted)
	if len(p.settings.Trusted) > 0 {
		if real, err := netip.ParseAddr(who.realIP); err == nil {
			client = real
		}
	}
	var tried []*endpoint.Endpoint
	var failures []error
	begun := begunFor(r)
	for {
		e, err := begun.endpoint, error(nil)
		if e == nil {
			e, err = p.settings.Pool.Acquire(client, tried...)
		}
		if err != nil {
			if len(failures) == 0 {
				failures = []error{err}
			}
			break
		}
		if len(tried) > 0 {
			p.metrics.retried()
		}
		fateOf(w).asked(e.Addr)
		u, response, err := p.askDirect(r, p.direct.key(e.Addr, client), who, begun)
		begun = attempt{}
		if err == nil {
			defer e.Release() // also where the answer breaks off, which is a panic
			e.Succeeded()
			expectLong(r, response.ContentLength, u)
			p.passDirect(w, r, u, response)
			return
		}
		e.Release()
		if r.Context().Err() != nil {
			p.fail(w, r, r.Context().Err())
			return
		}
		failures = append(failures, err)
		if tcp.Exhausted(err) { // no endpoint's fault, and no better with another
			break
		}
		e.Failed(err)
		p.direct.drop(e.Addr)
		tried = append(tried, e)
		var dial *net.OpError
		if !errors.As(err, &dial) || dial.Op != "dial" || len(tried) == attempts {
			break
		}
	}
	p.fail(w, r, errors.Join(failures...))
}

// askDirect sends a request and reads the head of its answer. A kept connection may have been closed by the endpoint
// meanwhile: a GET may be sent again, on a new one.
func (p *proxy) askDirect(
	r *http.Request, key idle.Key, who claims, begun attempt,
) (*upstream, *http.Response, error) {
	if begun.err != nil {
		return nil, nil, begun.err
	}
	for fresh := false; ; fresh = true {
		u, head := begun.upstream, []byte(nil)
		if begun.upstream = nil; u == nil {
			var err error
			if u, err = p.direct.get(r.Context(), key, fresh); err != nil {
				return nil, nil, err
			}
			u.head = appendRequest(u.head[:0], r, who)
			head = u.head
		}
		response, err := u.ask(r, head, p.direct.response)
		if err == nil {
			return u, response, nil
		}
		_ = u.Close()
		var timeout net.Error
		if !u.used || r.Context().Err() != nil || errors.As(err, &timeout) && timeout.Timeout() {
			return nil, nil, err
		}
	}
}

// ask writes the request, unless that was done before, and waits for the head of the answer.
func (u *upstream) ask(r *http.Request, head []byte, limit time.Duration) (_ *http.Response, err error) {
	deadline := time.Time{}
	if limit > 0 {
		deadline = time.Now().Add(limit)
	}
	if err := u.waitUntil(deadline); err != nil {
		return nil, err
	}
	// The client going away ends the wait.
	stop := context.AfterFunc(r.Context(), func() { _ = u.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil {
			err = r.Context().Err() // the deadlines in the past may still be set
		}
	}()
	if len(head) > 0 {
		if _, err := u.Write(head); err != nil {
			return nil, err
		}
	}
	u.bounded, u.room = true, answerHead
	defer func() { u.bounded = false }()
	for {
		response, err := http.ReadResponse(u.reader, r)
		if err != nil {
			return nil, err
		}
		switch {
		case response.StatusCode == http.StatusSwitchingProtocols:
			return nil, errSwitched
		case response.StatusCode < http.StatusContinue:
			return nil, errStatus
		case response.StatusCode >= http.StatusOK:
			return response, nil
		}
	}
}

// appendRequest writes the head. What net/http has parsed holds no line break or NUL, neither in the target nor in a
// header.
func appendRequest(b []byte, r *http.Request, who claims) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.RequestURI...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.Host...)
	b = append(b, "\r\n"...)
	listed := r.Header["Connection"]
	for name, values := range r.Header {
		if hopByHop(name) || claimed(name) || alias(name) || named(listed, name) {
			continue
		}
		for _, value := range values {
			b = appendHeader(b, name, value)
		}
	}
	b = who.append(b)
	b = appendHeader(b, "Via", viaDirect)
	return append(b, "\r\n"...)
}

var viaDirect = "1.1 " + pseudonym

func appendHeader(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, "\r\n"...)
}

// hopByHop headers belong to one connection (RFC 9110, section 7.6.1); Host is written apart.
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer",
		"Transfer-Encoding", "Upgrade", "Host", "Content-Length":
		return true
	default:
		return false
	}
}

// named is whether a Connection header lists a name.
func named(lists []string, name string) bool {
	for _, list := range lists {
		for each := range strings.SplitSeq(list, ",") {
			if textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(each)) == name {
				return true
			}
		}
	}
	return false
}

// passDirect gives the answer to the client, and keeps the connection if the answer ended in order.
func (p *proxy) passDirect(w http.ResponseWriter, r *http.Request, u *upstream, response *http.Response) {
	header := w.Header()
	listed := response.Header["Connection"]
	for name, values := range response.Header {
		if name == "Content-Length" || !hopByHop(name) && !named(listed, name) {
			header[name] = values
		}
	}
	if header["Content-Type"] == nil {
		header["Content-Type"] = nil // or net/http would guess one
	}
	w.WriteHeader(response.StatusCode)
	stop := func() bool { return true }
	if response.ContentLength < 0 || response.ContentLength > int64(u.reader.Buffered()) {
		// More is to come, as slowly as it likes. The next request sets a deadline of its own.
		_ = u.waitUntil(time.Time{})
		stop = context.AfterFunc(r.Context(), func() { _ = u.SetReadDeadline(time.Unix(1, 0)) })
	}
	buffer := bufferPool.Get().(*[32 << 10]byte)
	readErr, writeErr := copyBody(w, response.Body, buffer[:], response.ContentLength < 0)
	bufferPool.Put(buffer)
	for name, values := range response.Trailer {
		header[http.TrailerPrefix+name] = values
	}
	switch {
	case readErr == nil && writeErr == nil && stop() && !response.Close && u.reader.Buffered() == 0:
		p.direct.put(u)
	default:
		_ = u.Close()
	}
	if writeErr != nil {
		p.metrics.failed(reasonGone)
	}
	if readErr != nil {
		// The client must see that the answer is torn.
		panic(http.ErrAbortHandler)
	}
}

// copyBody copies until the end. An answer without a length may be a stream that is waited for: each piece is flushed.
func copyBody(w http.ResponseWriter, body io.Reader, buffer []byte, flush bool) (readErr, writeErr error) {
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if _, writeErr := w.Write(buffer[:n]); writeErr != nil {
				return nil, writeErr
			}
			if flush && err == nil {
				_ = http.NewResponseController(w).Flush()
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil, nil
		case err != nil:
			return err, nil
		}
	}
}
