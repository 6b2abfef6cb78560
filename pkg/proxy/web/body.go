package web

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/tinkerbell/stack/pkg/endpoint"
)

// retryBody is a request's body that outlives failures to connect, for the next endpoint: the transport closes it
// then. Once there is a connection, to close it must wake whoever reads it, or a stream that its endpoint broke would
// wait for its client. It remembers whether the client broke the body off, for which no endpoint is to blame.
type retryBody struct {
	io.ReadCloser
	given  atomic.Bool           // to a connection
	closed atomic.Bool           // by the transport: errors of reading are its own then
	whole  atomic.Bool           // read to its end
	lost   atomic.Bool           // its connection ended while it was read
	fault  atomic.Pointer[error] // of reading from the client
}

// errReading is a panic of net/http's server while the Transport reads a body.
var errReading = errors.New("the body cannot be read any more")

// read reads. net/http's server panics where a body is read while it reads the connection itself, before it touches
// anything; response.WriteHeader keeps it from that. The Transport reads in a goroutine of its own, where a panic would
// end the process, so that one which is overlooked must end its exchange only.
func (k *retryBody) read(b []byte) (n int, err error) {
	defer func() {
		if recover() != nil {
			n, err = 0, errReading
		}
	}()
	return k.ReadCloser.Read(b)
}

// Read implements io.Reader.
func (k *retryBody) Read(b []byte) (int, error) {
	n, err := k.read(b)
	switch {
	case errors.Is(err, io.EOF):
		k.whole.Store(true)
	case err != nil && !k.closed.Load():
		k.fault.CompareAndSwap(nil, &err)
	}
	return n, err
}

// Close implements io.Closer.
func (k *retryBody) Close() error {
	if !k.given.Load() {
		return nil
	}
	k.closed.Store(true)
	return k.ReadCloser.Close()
}

// broken is why the client's body could not be read; nil where it could. A nil body is whole.
func (k *retryBody) broken() error {
	if k == nil {
		return nil
	}
	if fault := k.fault.Load(); fault != nil {
		return *fault
	}
	return nil
}

func (k *retryBody) isLost() bool { return k != nil && k.lost.Load() }

// partial is whether a connection got a part of the body, and its end is still the client's to send. An endpoint that
// ends the connection then may have lost its patience with the client: that tells nothing about its health.
func (k *retryBody) partial() bool { return k != nil && k.given.Load() && !k.whole.Load() }

// bodyError is what is wrong with a request's body.
type bodyError struct{ cause error }

func (e bodyError) Error() string { return "failed to read the request's body: " + e.cause.Error() }
func (e bodyError) Unwrap() error { return e.cause }

// use is an answer of an endpoint, and the endpoint's use with it. It ends with the request.
type use struct {
	body io.Closer
	// untraced is the request's context in HTTP/2, without ReverseProxy's trace, which would write interim answers and
	// then clear their header while the server of HTTP/2 may still be reading it: where the client has reset the stream,
	// it does not wait. They are dropped, as on the direct way.
	untraced context.Context
	outcome  *outcome     // of the request; nil where nobody asks for it
	client   *stallReader // its body in HTTP/1.1
}

type useKey struct{}

func (u *use) end() {
	if u.body != nil {
		_ = u.body.Close()
	}
}

// release ends the endpoint's use when the response's body is closed. The body of an upgraded connection can be
// written to as well.
func release(body io.ReadCloser, e *endpoint.Endpoint) io.ReadCloser {
	r := releasing{Reader: body, once: sync.OnceValue(func() error {
		e.Release()
		return body.Close()
	})}
	if w, ok := body.(io.Writer); ok {
		return releasingWriter{releasing: r, Writer: w}
	}
	return r
}

type releasing struct {
	io.Reader
	once func() error
}

// Close implements io.Closer.
func (r releasing) Close() error { return r.once() }

type releasingWriter struct {
	releasing
	io.Writer
}

var errStatus = errors.New("the endpoint's status code is none of HTTP's")

// judgeStatus is an error where an answer's status cannot be passed on: net/http's server panics for codes of other
// than three digits, and below 100. What an endpoint switches to must have been asked for; ReverseProxy compares with
// the upgrade that it sent, as ASCII.
func judgeStatus(response *http.Response, upgrade string) error {
	switch code := response.StatusCode; {
	case code < http.StatusContinue || code > 999:
		return errStatus
	case code != http.StatusSwitchingProtocols:
		return nil
	}
	answered := response.Header.Get("Upgrade")
	if upgrade == "" || len(answered) != len(upgrade) || !strings.EqualFold(answered, upgrade) {
		return errSwitched
	}
	return nil
}
