package web

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// trickle is a body that comes piece by piece, until its request has ended.
type trickle struct{ ctx context.Context }

func (t trickle) Read(b []byte) (int, error) {
	select {
	case <-t.ctx.Done():
		return 0, t.ctx.Err()
	case <-time.After(200 * time.Microsecond):
		return copy(b, "0123456789"), nil
	}
}

// An endpoint answers while the client's body is still coming. What reads the body then outlives the handler, and must
// not touch what was the handler's: in HTTP/2 that would be a panic outside any handler, which ends the process.
func TestF5EarlyAnswerToBody(t *testing.T) { withAndWithout(t, testF5EarlyAnswerToBody) }

func testF5EarlyAnswerToBody(t *testing.T, start starter) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	addr, _ := rawEndpoint(t, func(conn net.Conn) {
		b := make([]byte, 4<<10)
		if _, err := conn.Read(b); err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
		for { // and takes the body
			if _, err := conn.Read(b); err != nil {
				_ = conn.Close()
				return
			}
		}
	})
	r := start(t, Settings{Pool: pool(addr), Timeouts: Timeouts{Stall: time.Minute}, TLS: &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"},
	}})
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
			defer transport.CloseIdleConnections()
			for range 30 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+r.Addr().String(), trickle{ctx})
				if err == nil {
					var answer *http.Response
					if answer, err = transport.RoundTrip(request); err == nil {
						if answer.StatusCode != http.StatusRequestEntityTooLarge {
							t.Errorf("got %d", answer.StatusCode)
						}
						_ = answer.Body.Close()
					}
				}
				if cancel(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// panicking is a body as net/http's while its server reads the connection.
type panicking struct{ io.ReadCloser }

func (panicking) Read([]byte) (int, error) { panic("invalid concurrent Body.Read call") }

// A panic while the Transport reads a body is an error of that request, not the end of the process.
func TestF5BodyReadPanics(t *testing.T) {
	k := &kept{ReadCloser: panicking{}}
	if n, err := k.Read(make([]byte, 1)); n != 0 || !errors.Is(err, errReading) || !errors.Is(k.broken(), errReading) {
		t.Errorf("read %d: %v, broken: %v", n, err, k.broken())
	}
}
