package progress

import (
	"context"
	"errors"
	"io"
	"net/http"
)

// Transport is an HTTP transport that gives a request up when neither a byte of its body is sent, nor its answer
// begins, nor a byte of the answer's body comes for the patience. An [http.Client] needs no Timeout then, which would
// end a long transfer.
type Transport struct {
	http.RoundTripper
	Patience Patience
}

// RoundTrip implements [http.RoundTripper].
func (t Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, w := Begin(r.Context(), t.Patience)
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &upload{r.Body, w}
	}
	response, err := t.RoundTripper.RoundTrip(r)
	if err != nil {
		err = w.Why(ctx, err)
		w.End()
		return nil, err
	}
	w.Moved(response.Status)
	response.Body = &body{ReadCloser: response.Body, Watch: w, ctx: ctx}
	return response, nil
}

// CloseIdleConnections closes those of the transport inside.
func (t Transport) CloseIdleConnections() {
	(&http.Client{Transport: t.RoundTripper}).CloseIdleConnections()
}

// upload is a request's body under watch.
type upload struct {
	io.ReadCloser
	*Watch
}

func (u *upload) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	u.Sent(n)
	return n, err
}

// body is an answer's body under watch.
type body struct {
	io.ReadCloser
	*Watch
	ctx context.Context // of the request
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.Bytes(n)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.Why(b.ctx, err)
	}
	return n, err
}

func (b *body) Close() error {
	defer b.End()
	return b.ReadCloser.Close()
}
