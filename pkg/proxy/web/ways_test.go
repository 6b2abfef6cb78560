package web

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/internal/testwait"
)

// ways are requests for the same by each way.
var ways = map[string]string{
	"plain":     plainGet,
	"pool":      "GET / HTTP/1.1\r\nHost: h\r\nVia: 1.1 a\r\n\r\n",
	"Transport": "GET / HTTP/1.1\r\nHost: h\r\nTe: trailers\r\n\r\n",
}

// lockedLog is a log that may be read meanwhile.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

var accessLine = regexp.MustCompile(`msg=(?:request|"request failed") .*code=(\d+) bytes=(\d+) .*torn=(\w+)`)

// wayResult is what a client, the counters, the log and the events say of an answer.
type wayResult struct{ answer, counted, logged, recorded string }

// An endpoint's answer, good or bad, means the same on each way: to the client, the counters, the log and the events.
func TestWaysAgree(t *testing.T) {
	withAndWithout(t, testWaysAgree)
	t.Run("rate", func(t *testing.T) {
		testWaysAgree(t, rated(func(t *testing.T, s Settings, log ...io.Writer) running {
			return startLogged(t, s, io.MultiWriter(log...))
		}))
	})
}

func testWaysAgree(t *testing.T, start starter) {
	head := strings.Repeat("X-Long: "+strings.Repeat("x", 1000)+"\r\n", 7)
	for name, answers := range map[string][]string{
		"length":                {fine},
		"empty":                 {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		"chunked":               {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"},
		"until the end":         {"HTTP/1.1 200 OK\r\n\r\nok"},
		"version 1.0":           {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		"no content":            {"HTTP/1.1 204 No Content\r\n\r\n"},
		"no content, a length":  {"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok"},
		"not modified":          {"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n"},
		"reset content":         {"HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n"},
		"early hints":           {"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + fine},
		"server error":          {"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno"},
		"too much":              {fine + "more"},
		"too little":            {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok"},
		"chunks break off":      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nok"},
		"two lengths":           {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok"},
		"two lengths, the same": {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok"},
		"length and chunks": {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"2\r\nok\r\n0\r\n\r\n"},
		"no number":            {"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nok"},
		"closes":               {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"},
		"bare LF":              {"HTTP/1.1 200 OK\nContent-Length: 2\n\nok"},
		"no reason":            {"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok"},
		"long head":            {"HTTP/1.1 200 OK\r\n" + head + "Content-Length: 2\r\n\r\nok"},
		"folded":               {"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 2\r\n\r\nok"},
		"strange line":         {"HTTP/1.1 200 OK\r\nX y\r\nContent-Length: 2\r\n\r\nok"},
		"strange code":         {"HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok"},
		"code without meaning": {"HTTP/1.1 999 ?\r\nContent-Length: 2\r\n\r\nok"},
		"another protocol":     {"SSH-2.0-OpenSSH_9.9\r\n"},
		"switches unasked":     {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"},
		"breaks off in head":   {"HTTP/1.1 200 OK\r\nContent-Le"},
		"nothing":              {""},
		"endless head":         {"HTTP/1.1 200 OK\r\n" + strings.Repeat(head, 60) + "Content-Length: 2\r\n\r\nok"},
		// Behind these the endpoint waits for the next request.
		"bare LF, open":          {"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", ""},
		"another protocol, open": {"SSH-2.0-OpenSSH_9.9\r\n", ""},
		"switches unasked, open": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", ""},
		"too much, open":         {fine + "more", ""},
		"chunked, open":          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := map[string]wayResult{}
			for way, request := range ways {
				got[way] = askBy(t, start, request, answers...)
			}
			if diff := cmp.Diff(got["pool"], got["plain"], cmp.AllowUnexported(wayResult{})); diff != "" {
				t.Errorf("plain differs from the pool:\n%s", diff)
			}
			if diff := cmp.Diff(got["pool"], got["Transport"], cmp.AllowUnexported(wayResult{})); diff != "" {
				t.Errorf("http.Transport differs from the pool:\n%s", diff)
			}
		})
	}
}

func askBy(t *testing.T, start starter, request string, answers ...string) wayResult {
	t.Helper()
	addr, _ := raw(t, answers...)
	var log lockedLog
	every := AccessLog("all")
	p := pool(addr)
	r := start(t, Settings{Pool: p, AccessLog: every, Timeouts: Timeouts{Response: 20 * time.Second}}, &log)
	c := r.talk(t)
	if _, err := io.WriteString(c.Conn, request); err != nil {
		t.Fatal(err)
	}
	var o wayResult
	response, err := http.ReadResponse(c.Reader, nil)
	for err == nil && response.StatusCode < 200 {
		response, err = http.ReadResponse(c.Reader, nil)
	}
	if err == nil {
		body, err := io.ReadAll(response.Body)
		o.answer = fmt.Sprintf("%d %q %v", response.StatusCode, body, response.Header["X-Long"] != nil)
		if err != nil {
			o.answer = "torn"
		}
	} else {
		o.answer = "torn"
	}
	_ = c.Conn.Close()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	// net/http's server may close an idle connection while its goroutine does, which counts it a moment later.
	testwait.Until(t, "no connection is open", func() bool { return testutil.ToFloat64(r.open.WithLabelValues("r")) == 0 })
	for _, code := range []string{"200", "204", "205", "304", "499", "500", "502", "504", "999"} {
		if n := testutil.ToFloat64(r.requests.WithLabelValues("r", code)); n > 0 {
			o.counted += fmt.Sprintf("%s: %v; ", code, n)
		}
	}
	for _, reason := range []string{"torn", "error", "timeout", "client_gone"} {
		if n := testutil.ToFloat64(r.failures.WithLabelValues("r", reason)); n > 0 {
			o.counted += fmt.Sprintf("%s: %v; ", reason, n)
		}
	}
	o.counted += fmt.Sprintf("in flight: %v; open: %v; at the endpoint: %d, failed %d",
		testutil.ToFloat64(r.flight.WithLabelValues("r")), testutil.ToFloat64(r.open.WithLabelValues("r")),
		p.Status()[0].Active, p.Status()[0].Failures)
	for _, l := range accessLine.FindAllStringSubmatch(log.String(), -1) {
		o.logged += strings.Join(l[1:], " ") + "; "
	}
	for _, x := range r.log.All() {
		o.recorded += strings.ReplaceAll(fmt.Sprintf("%d %d %v %d %d/%d %s %s %s", x.Kind, x.Outcome, x.Endpoint, x.Code,
			x.Bytes, x.Expected, x.Method, x.Name, x.Reason), addr, "endpoint") + "; "
	}
	return o
}
