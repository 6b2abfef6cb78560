package web

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
)

// retryBody is a request's body that outlives failures to connect, for the next endpoint: http.Transport closes it
// then. Once there is a connection, to close it must wake whoever reads it, or a stream that its endpoint broke would
// wait for its client. It remembers whether the client broke the body off, for which no endpoint is to blame.
type retryBody struct {
	io.ReadCloser
	slow   bool                  // Close may wait for the client, as in HTTP/1.1
	left   int64                 // of its announced length, in bytes; below 0 where there is none
	given  atomic.Bool           // to a connection
	closed atomic.Bool           // by http.Transport, or the handler has returned: nothing more is read
	whole  atomic.Bool           // read to its end
	fault  atomic.Pointer[error] // of reading from the client
}

// errReading is a panic of net/http's server while http.Transport reads a body.
var errReading = errors.New("the body cannot be read any more")

// read reads. net/http's server panics where a body is read while it reads the connection itself, before it touches
// anything; response.WriteHeader keeps it from that. http.Transport reads in a goroutine of its own, where a panic
// would end the process, so that one which is overlooked must end its exchange only.
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
	if k.closed.Load() {
		if k.whole.Load() {
			return 0, io.EOF // the endpoint has all of it, and what went wrong there is the error
		}
		return 0, http.ErrBodyReadAfterClose
	}
	n, err := k.read(b)
	if k.left > 0 {
		if k.left -= int64(n); k.left == 0 {
			k.whole.Store(true)
		}
	}
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
	if k.slow {
		return nil
	}
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

// partial is whether a connection got a part of the body, and its end is still the client's to send. An endpoint that
// ends the connection then may have lost its patience with the client: that tells nothing about its health.
func (k *retryBody) partial() bool { return k != nil && k.given.Load() && !k.whole.Load() }

// bodyError is what is wrong with a request's body.
type bodyError struct{ cause error }

func (e bodyError) Error() string { return "failed to read the request's body: " + e.cause.Error() }
func (e bodyError) Unwrap() error { return e.cause }
