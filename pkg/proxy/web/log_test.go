package web

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// A connection whose request was logged waits for the next one as any other: for the idle time, not for a header's, and
// a drain ends it at once.
func TestLoggedRequestLeavesItsConnectionIdle(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testLoggedRequestLeavesItsConnectionIdle)
}

func testLoggedRequestLeavesItsConnectionIdle(t *testing.T, start starter) {
	addr := backend(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) })
	failures := AccessLog("errors")
	log := &lockedLog{}
	r := start(t, Settings{
		Pool: pool(addr), AccessLog: failures, Drain: time.Minute, Timeouts: Timeouts{Header: loop.Tick},
	}, log)
	c := r.talk(t)
	c.ask(t, plainGet)
	eventually(t, "the request is logged", func() bool { return accessLine.MatchString(log.String()) })
	_ = c.SetReadDeadline(time.Now().Add(4 * loop.Tick))
	if _, err := c.Peek(1); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("while it is idle the connection gets %v", err)
	}
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if response, _ := c.ask(t, plainGet); response.StatusCode != http.StatusNotFound {
		t.Errorf("got %d", response.StatusCode)
	}
	eventually(t, "both requests are logged", func() bool { return len(accessLine.FindAllString(log.String(), -1)) == 2 })
	if n := len(r.loopConns()); r.own == nil && n != 1 {
		t.Errorf("%d connections are in a loop, want 1", n)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
}

// logged is a line of the log, as far as tests look at it.
type logged struct {
	Msg, Path, Agent, Client, Level, Reason, Error string
	Code, Lines                                    int
}

// loggedLines reads a log in JSON.
func loggedLines(t *testing.T, log string) (all []logged) {
	t.Helper()
	for line := range strings.Lines(log) {
		var l logged
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if len(line) > 4<<10 {
			t.Errorf("a line has %d bytes", len(line))
		}
		all = append(all, l)
	}
	return all
}

// talkFrom is talk from another client's address.
func (r running) talkFrom(t *testing.T, client string) talk {
	t.Helper()
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(client), 0))}
	conn, err := dialer.DialContext(t.Context(), "tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return talk{conn, bufio.NewReader(conn)}
}

// No client fills the log, nor do many; what is left out is told exactly, in one line for ten seconds; and another
// trouble, of a client that was never heard of, is logged in the midst of it.
func TestFloodDoesNotFillTheLog(t *testing.T) {
	for name, flood := range map[string]struct{ clients, each int }{"one client": {1, 1000}, "many": {60, 15}} {
		t.Run(name, func(t *testing.T) {
			withAndWithout(t, func(t *testing.T, _ starter) {
				testFloodDoesNotFillTheLog(t, flood.clients, flood.each)
			})
		})
	}
}

func testFloodDoesNotFillTheLog(t *testing.T, clients, each int) {
	level := AccessLog("errors")
	addr := backend(t, func(w http.ResponseWriter, r *http.Request) {
		code := http.StatusNotFound
		if r.URL.Path == "/broken" {
			code = http.StatusBadGateway
		}
		w.WriteHeader(code)
	})
	log := &lockedLog{}
	config := Config{
		Listen: netip.MustParseAddrPort("0.0.0.0:0"), Settings: Settings{Pool: pool(addr), AccessLog: level},
		Logger: slog.New(slog.NewJSONHandler(log, nil)),
	}
	if !strings.Contains(t.Name(), "goroutines") {
		config.Loops = loops(t)
	}
	r := startBy(t, config)
	r.url = strings.Replace(r.url, "0.0.0.0", "127.0.0.1", 1)
	none := "GET /" + strings.Repeat("p", 3000) + " HTTP/1.1\r\nHost: h\r\nUser-Agent: " +
		strings.Repeat("a", 700) + "\r\n\r\n"
	for i := range clients {
		c := r.talkFrom(t, fmt.Sprintf("127.0.1.%d", i+1))
		for range each {
			c.ask(t, none)
		}
		if i == clients/2 {
			r.talkFrom(t, "127.0.2.1").ask(t, "GET /broken HTTP/1.1\r\nHost: h\r\n\r\n")
		}
		_ = c.Close()
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	text := log.String()
	missing, leftOut, broken, told := 0, 0, 0, 0
	for _, l := range loggedLines(t, text) {
		switch {
		case l.Msg == "request" && l.Code == http.StatusNotFound:
			missing++
			if len(l.Path) != mostLogged || len(l.Agent) != mostLogged || !strings.HasSuffix(l.Path, "…") {
				t.Errorf("path and agent have %d and %d bytes: %s", len(l.Path), len(l.Agent), l.Path)
			}
		case l.Msg == "request" && l.Code == http.StatusBadGateway && l.Client == "127.0.2.1":
			broken++
		case l.Msg == "lines about clients were left out":
			told++
			leftOut += l.Lines
		}
	}
	if missing+leftOut != clients*each || missing > 2000 || broken != 1 {
		t.Errorf("%d lines, %d left out, of %d requests; %d of the broken one", missing, leftOut, clients*each, broken)
	}
	if len(text) > 2000*1000 || clients == 1 && (missing > 200 || len(text) > 256<<10) {
		t.Errorf("%d lines, %d bytes", missing, len(text))
	}
	if n := testutil.ToFloat64(r.requests.WithLabelValues("r", "404")); n != float64(clients*each) {
		t.Errorf("%v requests are counted", n)
	}
}

// A request that no endpoint answers is one line, with why, also where requests are not logged.
func TestFailedRequestIsOneLine(t *testing.T) {
	for _, text := range []string{"off", "errors", "all"} {
		t.Run(text, func(t *testing.T) {
			level := AccessLog(text)
			log := &lockedLog{}
			r := startBy(t, Config{
				Listen: netip.MustParseAddrPort("127.0.0.1:0"), Loops: loops(t),
				Settings: Settings{Pool: pool(refused(t)), AccessLog: level}, Logger: slog.New(slog.NewJSONHandler(log, nil)),
			})
			r.talk(t).ask(t, plainGet)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			all := slices.DeleteFunc(loggedLines(t, log.String()), func(l logged) bool { return l.Msg == "draining connections" })
			if len(all) != 1 || all[0].Msg != "request failed" || all[0].Level != "WARN" || all[0].Code != 502 ||
				all[0].Reason != "refused" || !strings.Contains(all[0].Error, "refused") || all[0].Client != "127.0.0.1" {
				t.Errorf("got %+v", all)
			}
		})
	}
}
