package web

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// An endpoint that answers while the body is still on its way: both arrive whole.
func TestBothWaysAtOnce(t *testing.T) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	}))})
	for _, size := range []int{1, 5_000, 200_000, 3 << 20} {
		sent := make([]byte, size)
		_, _ = rand.Read(sent)
		response, err := r.http.Post(r.url+"/echo", "application/octet-stream", bytes.NewReader(sent))
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("got %d bytes of %d, %v", len(got), size, err)
		}
	}
}

// An endpoint that answers without reading the body: the client gets the answer, and the rest of the body is not taken
// for the next request.
func TestAnswerBeforeTheBody(t *testing.T) {
	r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/upload" {
			t.Errorf("the endpoint saw %s %s", r.Method, r.URL)
		}
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	}))})
	body := bytes.Repeat([]byte("GET /victim HTTP/1.1\r\nHost: h\r\n\r\n"), 2000)
	for range 20 {
		response, err := r.http.Post(r.url+"/upload", "text/plain", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("got %s", response.Status)
		}
	}
}

// A body that stalled is not waited for, and what comes of it later is not the next request.
func TestStalledBodyIsNotTheNextRequest(t *testing.T) {
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    int
	}{
		"endpoint reads": {
			func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, http.StatusRequestTimeout,
		},
		"endpoint answers": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }, http.StatusTeapot},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Settings{
				Timeouts: Timeouts{Stall: 100 * time.Millisecond},
				Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path != "/upload" {
						t.Errorf("the endpoint saw %s %s", r.Method, r.URL)
					}
					test.handler(w, r)
				})),
			})
			conn, err := net.Dial("tcp", r.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			const victim = "GET /victim HTTP/1.1\r\nHost: h\r\n\r\n"
			fmt.Fprintf(conn, "POST /upload HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n0123456789", 10+len(victim))
			_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
			reader := bufio.NewReader(conn)
			first, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, first.Body)
			_ = first.Body.Close()
			if first.StatusCode != test.want {
				t.Errorf("got %s", first.Status)
			}
			_, _ = io.WriteString(conn, victim)
			if second, err := http.ReadResponse(reader, nil); err == nil {
				_ = second.Body.Close()
				t.Errorf("after %s the rest of the body was answered: %s", first.Status, second.Status)
			}
		})
	}
}

// A reload for which the old server must go: a client that has begun its next request at that moment gets its answer.
func TestKeptConnectionOutlivesReload(t *testing.T) {
	addr := backend(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	r := start(t, Settings{Pool: pool(addr), Drain: 20 * time.Second})
	for _, request := range []string{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n", "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc",
	} {
		conn, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		reader := bufio.NewReader(conn)
		ask := func() *http.Response {
			_, _ = io.WriteString(conn, request)
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatalf("%q: %v", request, err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			return response
		}
		ask()
		before := r.current.Load().server
		s := r.current.Load().settings
		s.MaxHeader++
		r.Update(s)
		for !before.retired.Load() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(10 * drainPoll)
		if last := ask(); !last.Close {
			t.Errorf("%q: the answer does not tell that the connection ends", request)
		}
		if _, err := reader.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%q: the connection goes on: %v", request, err)
		}
	}
}
