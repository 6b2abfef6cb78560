package web

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/textproto"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/idle"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// A request without a body over HTTP/1.1, which is nearly all that firmware sends, goes the direct way: the client's
// own goroutine writes it to a kept connection and reads the answer from it. net/http's Transport hands each request
// to two goroutines and back, and ReverseProxy copies it twice; without them a small request costs a third less
// (docs/benchmarks.md). Everything else - bodies, upgrades, HTTP/2, expectations - goes by ReverseProxy. Plain
// requests come here only with what a loop has begun: see [loopConn].

// simple is whether a request may go the direct way.
func simple(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && r.ProtoMajor == 1 && r.ContentLength == 0 &&
		len(r.TransferEncoding) == 0 && r.Header["Upgrade"] == nil && r.Header["Expect"] == nil && r.Header["Te"] == nil &&
		strings.HasPrefix(r.RequestURI, "/")
}

// serveDirect answers a simple request, or one that a loop has begun.
func (p *proxy) serveDirect(w http.ResponseWriter, r *http.Request, begun *attempt) {
	if begun != nil {
		// The loop has had all of a body. net/http notices that the client has gone only once the body was read.
		_, _ = io.Copy(io.Discard, r.Body)
	}
	client := peerOf(r)
	forwarded := newForwardedHeaders(r, client, p.settings.Trusted)
	if len(p.settings.Trusted) > 0 {
		if real, err := netip.ParseAddr(forwarded.realIP); err == nil {
			client = real
		}
	}
	var tried []*endpoint.Endpoint
	var failures []error
	for {
		var e *endpoint.Endpoint
		var err error
		if begun != nil {
			e = begun.endpoint
		} else {
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
		outcomeOf(w).sentTo(e.Addr)
		u, response, err := p.askDirect(w, r, p.upstreams.key(e.Addr, client), forwarded, begun)
		begun = nil
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
		if sock.Exhausted(err) { // no endpoint's fault, and no better with another
			break
		}
		e.Failed(err)
		p.upstreams.drop(e.Addr)
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
	w http.ResponseWriter, r *http.Request, key idle.Key, forwarded forwardedHeaders, begun *attempt,
) (*upstreamConn, *http.Response, error) {
	ctx := r.Context()
	switch {
	case begun == nil:
	case begun.upstream != nil:
		u, err := begun.upstream, begun.err
		if err == nil {
			var response *http.Response
			if response, err = u.ask(w, r, begun.unsent, p.upstreams.deadline(begun.start)); err == nil {
				return u, response, nil
			}
		}
		if !again(r, u, err) {
			return nil, nil, err
		}
	case begun.err != nil:
		return nil, nil, begun.err
	case p.upstreams.limit > 0: // the loop has waited for a connection since
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, begun.start.Add(p.upstreams.limit))
		defer cancel()
	}
	for fresh := begun != nil; ; fresh = true {
		u, err := p.upstreams.get(ctx, key, fresh)
		if err != nil {
			return nil, nil, err
		}
		u.head = appendRequest(u.head[:0], r, forwarded)
		response, err := u.ask(w, r, u.head, p.upstreams.deadline(time.Now()))
		if err == nil {
			return u, response, nil
		}
		if !again(r, u, err) {
			return nil, nil, err
		}
	}
}

// deadline is when an endpoint must have answered a request that it was asked at a time; zero is never.
func (d *upstreamPool) deadline(start time.Time) time.Time {
	if d.response <= 0 {
		return time.Time{}
	}
	return start.Add(d.response)
}

// again closes a connection that did not bring an answer, and is whether a new one may.
func again(r *http.Request, u *upstreamConn, err error) bool {
	_ = u.Close()
	var timeout net.Error
	return u.used && r.Context().Err() == nil && !(errors.As(err, &timeout) && timeout.Timeout())
}

// ask writes the request, or what is left of it, and waits for the head of the answer.
func (u *upstreamConn) ask(
	w http.ResponseWriter, r *http.Request, head []byte, deadline time.Time,
) (_ *http.Response, err error) {
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
		case r.Method == http.MethodPost && response.StatusCode != http.StatusContinue: // firmware's GETs expect none
			header := w.Header()
			before := header.Clone()
			setAnswerHeader(header, response)
			w.WriteHeader(response.StatusCode)
			clear(header)
			maps.Copy(header, before)
		}
	}
}

// appendRequest writes the head. What net/http has parsed holds no line break or NUL, neither in the target nor in a
// header.
func appendRequest(b []byte, r *http.Request, forwarded forwardedHeaders) []byte {
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.RequestURI...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, r.Host...)
	b = append(b, "\r\n"...)
	listed := r.Header["Connection"]
	for name, values := range r.Header {
		if hopByHop(name) || isForwarded(name) || alias(name) || named(listed, name) {
			continue
		}
		for _, value := range values {
			b = appendHeader(b, name, value)
		}
	}
	b = forwarded.append(b)
	b = appendHeader(b, "Via", viaHTTP11)
	return append(b, "\r\n"...)
}

var viaHTTP11 = "1.1 " + pseudonym

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
func (p *proxy) passDirect(w http.ResponseWriter, r *http.Request, u *upstreamConn, response *http.Response) {
	header := w.Header()
	setAnswerHeader(header, response)
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
	readErr, writeErr := copyBody(w, response.Body, buffer[:])
	bufferPool.Put(buffer)
	for name, values := range response.Trailer {
		header[http.TrailerPrefix+name] = values
	}
	switch {
	case readErr == nil && writeErr == nil && stop() && !response.Close && u.reader.Buffered() == 0:
		p.upstreams.put(u)
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

// setAnswerHeader takes over what is not for the endpoint's connection only.
func setAnswerHeader(header http.Header, response *http.Response) {
	listed := response.Header["Connection"]
	for name, values := range response.Header {
		if name == "Content-Length" || !hopByHop(name) && !named(listed, name) {
			header[name] = values
		}
	}
}

// copyBody copies until the end. What has come is flushed, however long the rest takes; of a long answer that comes
// fast nothing is left to flush, since net/http keeps only what is short.
func copyBody(w http.ResponseWriter, body io.Reader, buffer []byte) (readErr, writeErr error) {
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if _, writeErr := w.Write(buffer[:n]); writeErr != nil {
				return nil, writeErr
			}
			if err == nil {
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
