package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tinkerbell/stack/test/e2e/progress"
)

// site is a proxy with one backend that the test kills.
type site struct {
	*run
	backend *server
}

func newSite(t *testing.T) *site {
	t.Helper()
	if forbidden != nil {
		t.Skip(forbidden)
	}
	r := &run{
		Options: Options{Proxy: raceProxy(t), Dir: t.TempDir(), Log: io.Discard, LogLevel: "info"}, tally: newTally(),
		reloads: map[string]int{}, kinds: map[string]int{},
	}
	if err := r.site(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.leave)
	r.servers[0].kill()
	r.servers[2].kill()
	r.zone.set("backend.soak", r.serving()...)
	var err error
	if r.proxy, err = startProxy(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.proxy.stop(); err != nil {
			t.Errorf("the proxy did not end well: %v", err)
		}
		if text, _ := os.ReadFile(r.path("stack-proxy.log")); t.Failed() {
			t.Logf("the proxy said:\n%s", text)
		}
	})
	return &site{r, r.servers[1]} // whose TFTP is from one port, that is gone at once
}

func (s *site) start(t *testing.T) {
	t.Helper()
	if err := s.backend.start(); err != nil {
		t.Fatal(err)
	}
}

// counted waits for a counter of a route, by name and one more label.
func (s *site) counted(t *testing.T, name, route, value string) {
	t.Helper()
	progress.Await(t, fmt.Sprintf("%s{route=%q, ...=%q} counts", name, route, value), func() error {
		_, families, err := s.proxy.metrics(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range families[name].GetMetric() {
			var values []string
			for _, label := range m.GetLabel() {
				values = append(values, label.GetValue())
			}
			if slices.Contains(values, route) && slices.Contains(values, value) && m.GetCounter().GetValue() > 0 {
				return nil
			}
		}
		return fmt.Errorf("it is %v", families[name].GetMetric())
	})
}

// logged waits for a line of the log with some fields.
func (s *site) logged(t *testing.T, fields map[string]any) {
	t.Helper()
	progress.Await(t, fmt.Sprintf("a line of the log with %v", fields), func() error {
		text, err := os.ReadFile(s.path("stack-proxy.log"))
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(text) {
			var got map[string]any
			if json.Unmarshal(line, &got) == nil && has(got, fields) {
				return nil
			}
		}
		return errors.New("it has none")
	})
}

// await waits until ok is true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	progress.Await(t, what, func() error {
		if !ok() {
			return errors.New("not yet")
		}
		return nil
	})
}

// has tells whether a line has all of some fields.
func has(line, fields map[string]any) bool {
	for key, want := range fields {
		if line[key] != want {
			return false
		}
	}
	return true
}

// A backend dies in the midst of each protocol's transfer: what the client sees, what the metrics count, what the log
// says, and that all is well when the backend is back.
func TestBackendKilled(t *testing.T) {
	s := newSite(t)
	for _, test := range []struct {
		name string
		test func(*testing.T, *site)
	}{
		{"tcp", killedTCP}, {"http", killedHTTP}, {"http upload", killedUpload},
		{"grpc passed through", func(t *testing.T, s *site) { killedStream(t, s, portPass) }},
		{"grpc", func(t *testing.T, s *site) { killedStream(t, s, portGRPC) }},
		{"tftp", killedTFTP}, {"syslog", killedSyslog}, {"udp", killedUDP},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.test(t, s) }) {
			break
		}
		if !s.backend.running() {
			s.start(t)
		}
	}
}

func killedTCP(t *testing.T, s *site) {
	conn, err := dial(portTCP)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	one := make([]byte, 1)
	_, _ = conn.Write(one)
	if _, err := conn.Read(one); err != nil {
		t.Fatal(err)
	}
	s.backend.kill()
	if _, err := conn.Read(one); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client's read: %v, want a reset", err)
	}
	s.counted(t, "stack_proxy_tcp_aborted_total", "tcp", "reset")
	if err := echo(one); !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("a new connection: %v, want a reset", err)
	}
	s.counted(t, "stack_proxy_tcp_refused_total", "tcp", "backend")
	s.counted(t, "stack_proxy_tcp_dial_failures_total", "tcp", "refused")
	s.logged(t, map[string]any{"level": "WARN", "msg": "no endpoint took the connection", "route": "tcp"})
	s.start(t)
	if err := echo(one); err != nil {
		t.Errorf("with the backend back: %v", err)
	}
}

func killedHTTP(t *testing.T, s *site) {
	conn, err := dial(portHTTP)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /half HTTP/1.1\r\nHost: h\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.ReadFull(response.Body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	s.backend.kill()
	// The client must not take half an answer for a whole one.
	if _, err := io.ReadAll(response.Body); err == nil {
		t.Error("the client saw the answer end in order")
	}
	s.counted(t, "stack_proxy_http_failures_total", "http", "torn")
	s.logged(t, map[string]any{"level": "WARN", "msg": "request", "route": "http", "path": "/half", "torn": true})
	code, body := s.ask(t)
	if code != http.StatusBadGateway || body != "stack-proxy: route http: the backend refused the connection\n" {
		t.Errorf("the next request: %d %q", code, body)
	}
	s.counted(t, "stack_proxy_http_failures_total", "http", "refused")
	s.logged(t, map[string]any{"level": "WARN", "msg": "request failed", "route": "http", "reason": "refused"})
	s.start(t)
	if code, body := s.ask(t); code != http.StatusOK {
		t.Errorf("with the backend back: %d %q", code, body)
	}
}

// ask makes a request on a connection of its own.
func (s *site) ask(t *testing.T) (int, string) {
	t.Helper()
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: exchangeTimeout}).
		Get("http://" + address(portHTTP) + "/who")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// killedUpload: half of the body was sent, and no answer has begun.
func killedUpload(t *testing.T, s *site) {
	conn, err := dial(portHTTP)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "POST /sink HTTP/1.1\r\nHost: h\r\nContent-Length: 2000\r\n\r\n")
	_, _ = conn.Write(s.file[:1000])
	await(t, "the upload begun", func() bool { return s.backend.sinks.Load() > 0 })
	s.backend.kill()
	_, _ = conn.Write(s.file[1000:1500]) // a client that is silent meanwhile learns of it when it goes on
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("the client got no answer: %v", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusBadGateway {
		t.Errorf("the client got %s", response.Status)
	}
	s.counted(t, "stack_proxy_http_failures_total", "http", "error")
	s.logged(t, map[string]any{"level": "WARN", "msg": "request failed", "route": "http", "reason": "error", "path": "/sink"})
}

func killedStream(t *testing.T, s *site, port int) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, done, err := open(ctx, port)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if err := say(stream, "hello"); err != nil {
		t.Fatal(err)
	}
	s.backend.kill()
	var more string
	err = stream.RecvMsg(&more)
	if code := status.Code(err); code != codes.Unavailable {
		t.Errorf("the client's stream: %v", err)
	}
	if port == portPass {
		s.counted(t, "stack_proxy_tcp_connections_total", "pass", "pass")
	} else {
		s.counted(t, "stack_proxy_http_failures_total", "grpc", "torn")
		s.counted(t, "stack_proxy_grpc_handled_total", "grpc", "Unavailable")
		s.logged(t, map[string]any{"level": "WARN", "msg": "request", "route": "grpc", "grpc_code": "Unavailable", "torn": true})
	}
	s.start(t)
	again, end, err := open(ctx, port)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	if err := errors.Join(say(again, "hello"), finish(again)); err != nil {
		t.Errorf("with the backend back: %v", err)
	}
}

// killedTFTP: the machine hears nothing any more, as from a server that it could reach by itself, asks again on the
// same port, and gets the file from the server that is back.
func killedTFTP(t *testing.T, s *site) {
	conn, err := dialUDP(portTFTP)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request := "\x00\x01snp.efi\x00octet\x00"
	buffer := make([]byte, 600)
	_, _ = io.WriteString(conn, request)
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := conn.Read(buffer); err != nil || n != 516 {
		t.Fatalf("got %d bytes, %v", n, err)
	}
	s.backend.kill()
	time.Sleep(100 * time.Millisecond)
	_, _ = conn.Write([]byte{0, 4, 0, 1})
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	if n, err := conn.Read(buffer); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("from the dead server the client got %q, %v", buffer[:n], err)
	}
	s.start(t)
	_, _ = io.WriteString(conn, request)
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := conn.Read(buffer); err != nil || !bytes.Equal(buffer[4:n], s.file[:512]) || buffer[3] != 1 {
		t.Errorf("with the server back the client got %d bytes, %v", n, err)
	}
	s.counted(t, "stack_proxy_tftp_transfers_total", "tftp", "replaced")
	s.logged(t, map[string]any{
		"msg": "tftp transfer ended", "route": "tftp", "outcome": "replaced", "file": "snp.efi", "bytes": 512.0, "blocks": 1.0,
	})
	s.backend.kill()
	s.counted(t, "stack_proxy_tftp_transfers_total", "tftp", "timeout")
	s.logged(t, map[string]any{"level": "WARN", "msg": "tftp transfer ended", "route": "tftp", "outcome": "timeout"})
}

func killedSyslog(t *testing.T, s *site) {
	conn, err := dialUDP(portSyslog)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	line := func() string {
		word := fmt.Sprint("word-", time.Now().UnixNano())
		s.tally.sent(word)
		_, _ = fmt.Fprintf(conn, "<30>Oct  1 22:14:15 m dockerd[412]: line %s", word)
		return word
	}
	arrived := func(word string) bool {
		s.tally.mu.Lock()
		defer s.tally.mu.Unlock()
		_, under := s.tally.lines[word]
		return !under
	}
	first := line()
	await(t, "a line arrived", func() bool { return arrived(first) })
	s.backend.kill()
	for range 20 {
		line()
		time.Sleep(10 * time.Millisecond)
	}
	s.counted(t, "stack_proxy_syslog_drops_total", "syslog", "refused")
	s.logged(t, map[string]any{
		"level": "WARN", "msg": "syslog endpoint refuses datagrams: nobody listens there", "route": "syslog",
	})
	s.start(t)
	await(t, "a line arrived with the backend back", func() bool {
		word := line()
		time.Sleep(20 * time.Millisecond)
		return arrived(word)
	})
}

func killedUDP(t *testing.T, s *site) {
	conn, err := dialUDP(portUDP)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	exchange := func(wait time.Duration) error {
		_, _ = io.WriteString(conn, "ping")
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		_, err := conn.Read(make([]byte, 100))
		return err
	}
	if err := exchange(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	s.backend.kill()
	if err := exchange(200 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("from a dead backend: %v", err)
	}
	s.counted(t, "stack_proxy_udp_sessions_total", "udp", "refused")
	s.start(t)
	await(t, "an answer on the same port with the backend back", func() bool {
		var timeout net.Error
		err := exchange(time.Second)
		if err != nil && (!errors.As(err, &timeout) || !timeout.Timeout()) {
			t.Fatal(err)
		}
		return err == nil
	})
}
