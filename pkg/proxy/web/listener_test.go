package web

import (
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// A load balancer's health check connects and says nothing, perhaps before any client has come.
func TestConnectionWithoutItsProxyHeader(t *testing.T) {
	addr, _ := raw(t, fine)
	r := start(t, Settings{AcceptProxy: loopback, Pool: pool(addr)})
	_ = r.talk(t).Conn.Close()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if testutil.ToFloat64(r.refusals.WithLabelValues("r", "proxy_header")) == 1 && r.Active() == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the connection is still open")
		}
	}
	if _, body := r.talk(t).ask(t, "PROXY TCP4 192.0.2.7 192.0.2.1 1234 50061\r\n"+plainGet); body != "ok" {
		t.Errorf("got %q", body)
	}
}

// Connections whose PROXY header is refused, such as a health check's, do not fill the log. What is left out is told.
func TestRefusedHeadersDoNotFillTheLog(t *testing.T) {
	addr, _ := raw(t, fine)
	log := &lockedLog{}
	r := startBy(t, Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: Settings{AcceptProxy: loopback, Pool: pool(addr)},
		Logger: slog.New(slog.NewJSONHandler(log, nil)),
	})
	const connections = 300
	for range connections {
		c := r.talk(t)
		_, _ = io.WriteString(c.Conn, plainGet)
		_, _ = io.Copy(io.Discard, c.Conn)
		_ = c.Close()
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	lines, leftOut := 0, 0
	for _, l := range loggedLines(t, log.String()) {
		switch l.Msg {
		case "PROXY header refused":
			lines++
		case "lines about clients were left out":
			leftOut += l.Lines
		}
	}
	if lines == 0 || lines > 200 || lines+leftOut != connections {
		t.Errorf("%d lines, %d are left out, of %d connections", lines, leftOut, connections)
	}
}

// A request that came in one piece with its PROXY header is one: a drain waits for its answer.
func TestDrainBehindProxyHeader(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	r := start(t, Settings{Drain: time.Minute, AcceptProxy: loopback,
		Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
			close(asked)
			select {
			case <-answer:
			case <-r.Context().Done():
				t.Error("the drain cut the request")
			}
			_, _ = io.WriteString(w, "done")
		}))})
	c := r.talk(t)
	_, _ = io.WriteString(c.Conn, "PROXY TCP4 192.0.2.7 192.0.2.1 1234 50061\r\n"+plainGet)
	<-asked
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	// Silent connections are closed by then.
	_ = c.SetReadDeadline(time.Now().Add(silence * 3 / 2))
	if _, err := c.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection got %v before its answer", err)
	}
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	close(answer)
	if _, body := c.ask(t, ""); body != "done" {
		t.Errorf("got %q", body)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A client that is slow, but never stops, gets its file: the stall is about the pause, not the whole.
func TestSlowClientOfAFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "image")
	content := make([]byte, 8<<20+corkFrom)
	_, _ = rand.Read(content)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	const stall = 2 * time.Second
	r := start(t, Settings{
		Timeouts: Timeouts{Stall: stall},
		Handler:  http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, name) }),
	})
	response, err := r.http.Get(r.url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	n := int64(0)
	for err == nil { // a quarter of it a second
		var part int64
		part, err = io.CopyN(io.Discard, response.Body, int64(len(content)/32))
		n += part
		time.Sleep(stall / 16)
	}
	if !errors.Is(err, io.EOF) || n != int64(len(content)) {
		t.Errorf("got %d bytes of %d, %v", n, len(content), err)
	}
}

// The place of a connection is free again behind it, whichever way its requests went.
func TestLimitsAreGivenBack(t *testing.T) {
	r := start(t, Settings{MaxPerClient: 1, MaxConnections: 1, Pool: pool(backend(t,
		func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") == "" {
				_ = http.NewResponseController(w).Flush() // chunked
				return
			}
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
				_ = conn.Close()
			}
		}))})
	for i, request := range []string{
		plainGet, ways["pool"], ways["Transport"], plainGet[:5], "garbage\r\n\r\n", "", plainGet + plainGet,
		"GET / HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", plainGet,
	} {
		c := r.talk(t)
		_, _ = io.WriteString(c.Conn, request)
		if len(request) > len(plainGet[:5]) {
			if _, err := c.Peek(1); err != nil {
				t.Errorf("connection %d got %v", i, err)
			}
		}
		_ = c.Conn.Close()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			if testutil.ToFloat64(r.Metrics.connections.WithLabelValues("r")) == float64(i+1) && r.Active() == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("connection %d, %q, is still open", i, request)
			}
		}
	}
	for _, reason := range []string{"limit", "client_limit"} {
		if n := testutil.ToFloat64(r.refusals.WithLabelValues("r", reason)); n != 0 {
			t.Errorf("refused %v connections: %s", n, reason)
		}
	}
}
