package web

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
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
func TestEarlyAnswerToBodyArrives(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testEarlyAnswerToBodyArrives)
}

func testEarlyAnswerToBodyArrives(t *testing.T, start starter) {
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

// An endpoint answers before the body is whole, and the client sends the rest together with its next request: net/http's
// server would wait for a third one beside the goroutine that serves the second, and panic where both read. So the
// connection ends with an early answer, and only then.
func TestEarlyAnswerEndsTheConnection(t *testing.T) {
	withAndWithout(t, testEarlyAnswerEndsTheConnection)
}

func testEarlyAnswerEndsTheConnection(t *testing.T, start starter) {
	addr, _ := rawEndpoint(t, func(conn net.Conn) {
		b := make([]byte, 4<<10)
		for {
			n, err := conn.Read(b)
			if err != nil {
				_ = conn.Close()
				return
			}
			if bytes.Contains(b[:n], []byte("/early")) || bytes.HasSuffix(b[:n], []byte("56789")) {
				_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
			}
		}
	})
	r := start(t, Settings{Pool: pool(addr), Timeouts: Timeouts{Stall: time.Minute}})
	for _, c := range []struct {
		name, path, first, rest string
		closes                  bool
	}{
		{"length, early", "/early", "Content-Length: 10\r\n\r\n01234", "56789", true},
		{"chunks, early", "/early", "Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n", "5\r\n56789\r\n0\r\n\r\n", true},
		{"length, whole", "/", "Content-Length: 10\r\n\r\n0123456789", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", r.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			in := bufio.NewReader(conn)
			_, _ = io.WriteString(conn, "POST "+c.path+" HTTP/1.1\r\nHost: x\r\n"+c.first)
			answer, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if answer.StatusCode != http.StatusNoContent || answer.Close != c.closes {
				t.Fatalf("got %d, close %t, want %t", answer.StatusCode, answer.Close, c.closes)
			}
			_, _ = io.WriteString(conn, c.rest+"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n01234")
			time.Sleep(5 * time.Millisecond) // the second body comes in two parts
			_, _ = io.WriteString(conn, "56789")
			answer, err = http.ReadResponse(in, nil)
			if c.closes && err == nil {
				t.Errorf("the connection went on: %d", answer.StatusCode)
			} else if !c.closes && (err != nil || answer.StatusCode != http.StatusNoContent) {
				t.Errorf("the connection did not go on: %v", err)
			}
		})
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// panicking is a body as net/http's while its server reads the connection.
type panicking struct{ io.ReadCloser }

func (panicking) Read([]byte) (int, error) { panic("invalid concurrent Body.Read call") }

// A panic while the Transport reads a body is an error of that request, not the end of the process.
func TestPanicOfABodyEndsItsExchange(t *testing.T) {
	k := &retryBody{ReadCloser: panicking{}}
	if n, err := k.Read(make([]byte, 1)); n != 0 || !errors.Is(err, errReading) || !errors.Is(k.broken(), errReading) {
		t.Errorf("read %d: %v, broken: %v", n, err, k.broken())
	}
}

// A body that was read to its announced length has its end, whoever closed it: http.Transport, which looks for more,
// would else give the closing for the reason why an answer cannot be read.
func TestWholeBodyEndsThoughClosed(t *testing.T) {
	for body, want := range map[string]error{"hello": io.EOF, "hell": http.ErrBodyReadAfterClose} {
		k := &retryBody{ReadCloser: io.NopCloser(strings.NewReader("hello")), left: 5}
		k.given.Store(true)
		if _, err := io.ReadFull(k, make([]byte, len(body))); err != nil {
			t.Fatal(err)
		}
		_ = k.Close()
		if _, err := k.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", body, err, want)
		}
	}
}
