package web

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// conversation is a client's connection with what it asks and gets, made up from a seed.
type conversation struct {
	requests []string
	methods  []string
	answers  []string // raw, by request
	closes   []bool   // the endpoint closes behind the answer
	fussy    []bool   // the endpoint closes instead of the answer, unless the connection is new
	ahead    bool     // the client does not wait for answers
	slow     bool     // there are long pauses
	seed     uint64
}

// inPieces cuts a text, and tells how long to wait behind each piece.
func inPieces(random *rand.Rand, text string, slow bool, each func(piece string) error) error {
	cuts := []int{0, len(text)}
	switch random.IntN(4) {
	case 0:
		for range 1 + random.IntN(4) {
			cuts = append(cuts, random.IntN(len(text)+1))
		}
	case 1:
		if len(text) < 300 {
			for i := range text {
				cuts = append(cuts, i)
			}
		}
	}
	slices.Sort(cuts)
	long := 0
	for i, from := range cuts[:len(cuts)-1] {
		if from == cuts[i+1] {
			continue
		}
		if err := each(text[from:cuts[i+1]]); err != nil {
			return err
		}
		switch n := random.IntN(100); {
		case slow && long < 2 && n < 20:
			long++
			time.Sleep(time.Duration(random.IntN(1300)) * time.Millisecond)
		case n < 50:
			time.Sleep(time.Duration(random.IntN(1500)) * time.Microsecond)
		}
	}
	return nil
}

func newConversation(seed uint64) *conversation {
	random := rand.New(rand.NewPCG(seed, 1))
	x := &conversation{
		seed: seed, ahead: random.IntN(3) == 0, slow: random.IntN(16) == 0,
	}
	odd := 1 + random.IntN(6) // one in so many is plain
	for i := range 1 + random.IntN(6) {
		method, request, last := oneOf(random, i, odd)
		x.requests, x.methods = append(x.requests, request), append(x.methods, method)
		answer, closes := anAnswer(random, i, method, odd)
		x.answers, x.closes = append(x.answers, answer), append(x.closes, closes)
		x.fussy = append(x.fussy, method == http.MethodGet && random.IntN(12) == 0)
		if last {
			break
		}
	}
	return x
}

// oneOf makes a request; after the last one the connection ends.
func oneOf(random *rand.Rand, i, odd int) (method, request string, last bool) {
	head := fmt.Sprintf("/%d?q=%%20 HTTP/1.1\r\nHost: h%d\r\n", i, random.IntN(2))
	for _, line := range []string{
		"User-Agent: Wget\r\n", "X-Forwarded-For: 192.0.2.66\r\n", "x-real-ip: 192.0.2.66\r\n", "Forwarded: for=192.0.2.66\r\n",
		"Connection: keep-alive\r\n", "Accept: */*\r\n", "X-Long: " + strings.Repeat("x", random.IntN(30)) + "\r\n",
	} {
		if random.IntN(4) == 0 {
			head += line
		}
	}
	if random.IntN(odd) == 0 {
		return "GET", "GET " + head + "\r\n", false
	}
	switch random.IntN(14) {
	case 0:
		return "GET", "GET " + head + "Content-Length: 5\r\n\r\nhello", false
	case 1:
		return "POST", "POST " + head + "Content-Length: 5\r\n\r\nhello", false
	case 2:
		return "POST", "POST " + head + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", true
	case 3:
		return "HEAD", "HEAD " + head + "\r\n", false
	case 4:
		return "GET", "GET " + head + "Connection: close\r\n\r\n", true
	case 5:
		return "GET", "GET " + head + "X-Longer: " + strings.Repeat("x", 5000) + "\r\n\r\n", false
	case 6:
		return "GET", "GET " + head + "Te: trailers\r\n\r\n", false
	case 7:
		return "GET", "GET " + head + "Host: other\r\n\r\n", true
	case 8:
		return "GET", "GET " + head + "\r\nsurplus\r\n\r\n", true
	case 9:
		return "GET", "GET " + head + "Via: 1.0 x\r\n\r\n", false
	case 10:
		return "GET", "GET " + head + "Connection: x-real-ip, keep-alive\r\n\r\n", false
	default:
		return "GET", "GET " + head + "\r\n", false
	}
}

const surplus = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"

// anAnswer makes an answer, and tells whether the endpoint closes behind it.
func anAnswer(random *rand.Rand, i int, method string, odd int) (answer string, closes bool) {
	body := fmt.Sprintf("<%d>", i)
	switch random.IntN(6) {
	case 0:
		body += strings.Repeat("y", http1.Piece-150+random.IntN(150))
	case 1:
		body += strings.Repeat("z", random.IntN(100_000))
	case 2:
		body = ""
	}
	code := []string{"200 OK", "200 OK", "200 ", "404 Not Found", "500 Oh"}[random.IntN(5)]
	start, length := "HTTP/1.1 "+code+"\r\n", fmt.Sprintf("Content-Length: %d\r\n", len(body))
	chunks := "0\r\n\r\n"
	if len(body) > 0 {
		chunks = fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	}
	closes = random.IntN(8) == 0
	head := start + length
	way := random.IntN(15)
	if random.IntN(odd) == 0 {
		way = -1
	}
	switch way {
	case 0:
		head, body = start+"Transfer-Encoding: chunked\r\n", chunks
	case 1:
		head, closes = start, true
	case 2:
		head, closes = "HTTP/1.0 "+code+"\r\n"+length, true
	case 3:
		head, body = "HTTP/1.1 204 No Content\r\n", ""
	case 4:
		head, body = "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n", ""
	case 5:
		head = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + head
	case 6:
		head += "X-Long: " + strings.Repeat("x", 6000) + "\r\n"
	case 7:
		head, closes = head+"Connection: close\r\n", true
	case 8:
		body += surplus
	case 9:
		head, closes = start+fmt.Sprintf("Content-Length: %d\r\n", len(body)+5), true
	case 10:
		head += "Keep-Alive: timeout=5\r\nConnection: keep-alive\r\nDate: Sat, 21 Nov 2026 23:00:00 GMT\r\n"
	case 11:
		return start[:random.IntN(len(start)-2)], true
	case 12:
		return strings.ReplaceAll(head, "\r\n", "\n") + "\n" + body, closes
	}
	if method == http.MethodHead {
		body = ""
	}
	return head + "\r\n" + body, closes
}

var pathNumber = regexp.MustCompile(`^/(\d+)$`)

// serve is the endpoint's side of a connection.
func (x *conversation) serve(conn net.Conn, saw func(string)) {
	reader := bufio.NewReader(conn)
	for first := true; ; first = false {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return
		}
		var i int
		if number := pathNumber.FindStringSubmatch(request.URL.Path); number != nil {
			i, _ = strconv.Atoi(number[1])
		}
		if x.fussy[i] && !first {
			return
		}
		var headers bytes.Buffer
		request.Header.Del("Via") // who it is passed by differs
		request.Header.Del("Accept-Encoding")
		request.Header.Del("Connection") // the engine keeps its connections to the endpoint
		_ = request.Header.Write(&headers)
		saw(fmt.Sprintf("%s %s %s %q %q", request.Method, request.RequestURI, request.Host, headers.String(), body))
		random := rand.New(rand.NewPCG(x.seed, uint64(2+i)))
		answer := x.answers[i]
		if at := strings.Index(answer, surplus); at >= 0 { // what comes later is for the next request
			_, _ = io.WriteString(conn, answer)
			answer = ""
		}
		err = inPieces(random, answer, x.slow, func(s string) error {
			_, err := io.WriteString(conn, s)
			return err
		})
		if err != nil || x.closes[i] {
			return
		}
	}
}

// ask is the client's side: what it gets.
func (x *conversation) ask(conn net.Conn) (got []string) {
	random := rand.New(rand.NewPCG(x.seed, 0))
	send := func(text string) {
		_ = inPieces(random, text, x.slow, func(s string) error { _, err := io.WriteString(conn, s); return err })
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	if x.ahead {
		sending.Go(func() {
			send(strings.Join(x.requests, ""))
		})
	}
	reader := bufio.NewReader(conn)
	for i, request := range x.requests {
		if !x.ahead {
			send(request)
		}
		asked := &http.Request{Method: x.methods[i]}
		response, err := http.ReadResponse(reader, asked)
		for err == nil && response.StatusCode < 200 {
			response, err = http.ReadResponse(reader, asked)
		}
		if err != nil {
			return append(got, "torn")
		}
		body, err := io.ReadAll(response.Body)
		response.Header.Del("Date")
		// What has no length, or no type, may get one of net/http: it depends on how much of the answer comes at once.
		response.Header.Del("Content-Length")
		response.Header.Del("Content-Type")
		var headers bytes.Buffer
		_ = response.Header.Write(&headers)
		if err != nil {
			return append(got, "torn") // where is a matter of time
		}
		text := string(body)
		if len(text) > 60 {
			text = fmt.Sprintf("%s... %d bytes", text[:50], len(text))
		}
		got = append(got, fmt.Sprintf("%d %q %v %q", response.StatusCode, headers.String(), response.Close, text))
	}
	return got
}

// result is what came of an exchange, for everyone who saw some of it.
type result struct {
	Client, Endpoint, Log []string
	Counted               string
}

var wholeLine = regexp.MustCompile(`msg=(?:request|"request failed") .*method=(.*) seconds=\S+ (.*)`)

func (x *conversation) run(t *testing.T, start starter) result {
	t.Helper()
	var mu sync.Mutex
	var out result
	addr, stop := rawEndpoint(t, func(conn net.Conn) {
		x.serve(conn, func(request string) {
			mu.Lock()
			defer mu.Unlock()
			// A GET or HEAD that was lost with a kept connection is sent again, but no POST.
			if n := len(out.Endpoint); n == 0 || request[0] == 'P' || out.Endpoint[n-1] != request {
				out.Endpoint = append(out.Endpoint, request)
			}
		})
	})
	every := []AccessLog{"errors", "all"}[x.seed%2]
	var log lockedLog
	p := pool(addr)
	settings := Settings{Pool: p, AccessLog: every, Timeouts: Timeouts{Response: 20 * time.Second}}
	if x.seed%2 == 1 {
		settings.Gate = hiding{}
	}
	r := start(t, settings, &log)
	conn := r.talk(t).Conn
	out.Client = x.ask(conn)
	_ = conn.Close()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	stop()
	// The front's end waits until the connection is gone, and not for its counting.
	testwait.Until(t, "the end of the connection", func() bool {
		return testutil.ToFloat64(r.open.WithLabelValues("r")) == 0
	})
	for _, code := range []string{"200", "204", "304", "400", "404", "499", "500", "502", "504"} {
		if n := testutil.ToFloat64(r.requests.WithLabelValues("r", code)); n > 0 {
			out.Counted += fmt.Sprintf("%s: %v; ", code, n)
		}
	}
	for _, reason := range []string{"torn", "error", "timeout", "client_gone"} {
		if n := testutil.ToFloat64(r.failures.WithLabelValues("r", reason)); n > 0 {
			out.Counted += fmt.Sprintf("%s: %v; ", reason, n)
		}
	}
	out.Counted += fmt.Sprintf("in flight %v, at the endpoint %d, failed %d",
		testutil.ToFloat64(r.flight.WithLabelValues("r")),
		p.Status()[0].Active, p.Status()[0].Failures)
	for _, l := range wholeLine.FindAllStringSubmatch(log.String(), -1) {
		out.Log = append(out.Log, l[1]+" "+strings.Replace(l[2], "net/http: HTTP/1.x transport connection broken: ", "", 1))
	}
	return out
}

// Whatever a client and an endpoint say to each other, and in which pieces: with loops they get the same of it as
// without, and so do the counters and the log. Thousands of exchanges are tried when STACK_SLOW is set.
func TestExchanges(t *testing.T) {
	n := uint64(80)
	if os.Getenv("STACK_SLOW") != "" {
		n = 4000
	}
	without := func(t *testing.T, s Settings, log ...io.Writer) running { return startOn(t, s, log[0], nil) }
	for seed := range n {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			x := newConversation(seed)
			with := func(t *testing.T, s Settings, log ...io.Writer) running {
				return startOn(t, s, log[0], loops(t))
			}
			plainly := x.run(t, without)
			for what, other := range map[string]starter{"loops": with, "a rate": rated(with)} {
				if diff := cmp.Diff(plainly, x.run(t, other)); diff != "" {
					t.Errorf("with %s it is not the same:\n%s\nrequests: %.300q\nanswers: %.300q", what, diff, x.requests,
						x.answers)
				}
			}
		})
	}
}
