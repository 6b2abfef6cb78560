package web

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// ambiguous is a request whose end, or meaning, two readers could see at different places.
type ambiguous struct {
	raw      string
	code     int    // of the first answer
	reaches  string // what the backend sees, in order: method path body; "*" is a matter of time
	requests int    // answers on the connection; 0 is 1
}

func smuggling() map[string]ambiguous {
	const victim = "GET /victim HTTP/1.1\r\nHost: h\r\n\r\n"
	return map[string]ambiguous{
		"plain":     {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", 200, "POST /a abc", 1},
		"pipelined": {"GET /a HTTP/1.1\r\nHost: h\r\n\r\nGET /b HTTP/1.1\r\nHost: h\r\n\r\n", 200, "GET /a ;GET /b ", 2},
		"chunked": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200,
			"POST /a abc", 1},
		// RFC 9112, section 6.1: the length is dropped, the chunks count, the connection ends.
		"length and chunks": {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"0\r\n\r\n" + victim, 200, "POST /a ", 0},
		"two lengths":       {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 30\r\n\r\nabc" + victim, 400, "", 0},
		"a list of lengths": {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3, 30\r\n\r\nabc" + victim, 400, "", 0},
		"signed length":     {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: +3\r\n\r\nabc" + victim, 400, "", 0},
		"negative length":   {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\nabc" + victim, 400, "", 0},
		"hex length":        {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 0x3\r\n\r\nabc" + victim, 400, "", 0},
		"huge length": {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551619\r\n\r\nabc" + victim, 400, "",
			0},
		"unknown coding": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + victim, 501, "", 0},
		"two codings": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" +
			"0\r\n\r\n" + victim, 501, "", 0},
		"chunked twice": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + victim, 501, "",
			0},
		"space before colon": {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length : 3\r\n\r\nabc" + victim, 400, "", 0},
		"tab in coding's name": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n" + victim, 400, "",
			0},
		"no host":              {"GET /a HTTP/1.1\r\n\r\n", 400, "", 0},
		"two hosts":            {"GET /a HTTP/1.1\r\nHost: h\r\nHost: i\r\n\r\n", 400, "", 0},
		"bad host":             {"GET /a HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "", 0},
		"no version":           {"GET /a\r\nHost: h\r\n\r\n", 400, "", 0},
		"strange version":      {"GET /a HTTP/1.10\r\nHost: h\r\n\r\n", 400, "", 0},
		"bare carriage return": {"GET /a HTTP/1.1\r\nHost: h\r\nX: a\rContent-Length: 3\r\n\r\nabc", 400, "", 0},
		"NUL in header":        {"GET /a HTTP/1.1\r\nHost: h\r\nX: a\x00b\r\n\r\n", 400, "", 0},
		"header without name":  {"GET /a HTTP/1.1\r\nHost: h\r\n: x\r\n\r\n", 400, "", 0},
		"space in name":        {"GET /a HTTP/1.1\r\nHost: h\r\nX Y: x\r\n\r\n", 400, "", 0},
		"space before first":   {"GET /a HTTP/1.1\r\n Host: h\r\n\r\n", 400, "", 0},
		"chunk size garbage": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3x\r\nabc\r\n0\r\n\r\n" + victim,
			400, "*", 0},
		"chunk without CRLF": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcX0\r\n\r\n" + victim,
			400, "*", 0},
		"line break in path":  {"GET /a\nX: y HTTP/1.1\r\nHost: h\r\n\r\n", 400, "", 0},
		"HTTP/2 preface":      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "", 0},
		"tunnel":              {"CONNECT 10.0.0.1:22 HTTP/1.1\r\nHost: h\r\n\r\n", 405, "", 0},
		"obs-fold in a value": {"GET /a HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n", 200, "GET /a ", 1},
		"folded coding":       {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 200, "POST /a ", 1},
		"bare LF":             {"GET /a HTTP/1.1\nHost: h\n\n", 200, "GET /a ", 1},
		"length twice, the same": {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 200,
			"POST /a abc", 1},
		"empty length":    {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\nabc" + victim, 400, "", 0},
		"length and more": {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3abc\r\n\r\nabc" + victim, 400, "", 0},
		"spaced length":   {"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 1 3\r\n\r\nabc" + victim, 400, "", 0},
		"length of a GET": {"GET /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", 200, "GET /a abc", 1},
		"chunks and length": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" +
			"0\r\n\r\n" + victim, 200, "POST /a ", 0},
		"chunks and length 0": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" +
			"3\r\nabc\r\n0\r\n\r\n" + victim, 200, "POST /a abc", 0},
		"coding in capitals": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: CHUNKED\r\n\r\n0\r\n\r\n", 200, "POST /a ", 1},
		"coding after VT": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n" + victim, 400, "",
			0},
		"empty coding":  {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding:\r\n\r\n0\r\n\r\n" + victim, 501, "", 0},
		"identity":      {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n\r\n" + victim, 501, "", 0},
		"gzip, chunked": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + victim, 501, "", 0},
		"chunks in 1.0": {"POST /a HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + victim, 200, "*", 0},
		"chunk extension": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\"\r\nabc\r\n0;x\r\n\r\n", 200,
			"POST /a abc", 1},
		"LF in extension": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a\nabc\r\n0\r\n\r\n" + victim,
			400, "*", 0},
		"LF after size": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n" + victim,
			400, "*", 0},
		"chunk of 2^64": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n" +
			"\r\n" + victim, 400, "*", 0},
		"negative chunk": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n" + victim,
			400, "*", 0},
		"hex chunk": {"POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n" + victim,
			400, "*", 0},
		"trailer": {"POST /a HTTP/1.1\r\nHost: h\r\nTrailer: X-Forwarded-For\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n" +
			"0\r\nX-Forwarded-For: 192.0.2.66\r\nContent-Length: 3\r\n\r\n", 200, "POST /a abc", 1},
		"absolute form":       {"GET http://other/a HTTP/1.1\r\nHost: h\r\n\r\n", 200, "GET /a ", 1},
		"absolute with user":  {"GET http://u@other/a HTTP/1.1\r\nHost: h\r\n\r\n", 400, "", 0},
		"asterisk":            {"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", 200, "", 1},
		"NUL in path":         {"GET /a\x00b HTTP/1.1\r\nHost: h\r\n\r\n", 400, "", 0},
		"NUL in name":         {"GET /a HTTP/1.1\r\nHost: h\r\nX\x00Y: x\r\n\r\n", 400, "", 0},
		"control in value":    {"GET /a HTTP/1.1\r\nHost: h\r\nX: a\x07b\r\n\r\n", 400, "", 0},
		"bytes above ASCII":   {"GET /a HTTP/1.1\r\nHost: h\r\nX: \xff\xfe\r\n\r\n", 200, "GET /a ", 1},
		"lower-case method":   {"get /a HTTP/1.1\r\nHost: h\r\n\r\n", 200, "get /a ", 1},
		"two spaces":          {"GET  /a HTTP/1.1\r\nHost: h\r\n\r\n", 400, "", 0},
		"tab in request line": {"GET\t/a\tHTTP/1.1\r\nHost: h\r\n\r\n", 400, "", 0},
		"empty lines first":   {"\r\n\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n", 400, "", 0},
		"upgrade to h2c": {"GET /a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" +
			"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", 200, "GET /a ", 1},
		"upgrade to h2c, too": {"GET /a HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: websocket, H2C\r\n\r\n", 200,
			"GET /a ", 1},
	}
}

// None may reach the backend as anything but what the client's connection is answered for: either refused, or one
// request with one meaning.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testSmuggling)
}

func testSmuggling(t *testing.T, start starter) {
	for name, test := range smuggling() {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var seen []string
			r := start(t, Settings{Pool: pool(backend(t, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					body = []byte("!")
				}
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, body))
			}))})
			conn, err := net.Dial("tcp", r.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, test.raw)
			want := max(test.requests, 1)
			answers, first := answersOn(conn, want)
			if answers != want || first != test.code {
				t.Errorf("%d answers, the first %d; want %d and %d", answers, first, want, test.code)
			}
			_ = conn.Close()
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			got := strings.Join(seen, ";")
			// "*": whether the backend saw the begin of the torn request is a matter of time.
			if got != test.reaches && test.reaches != "*" || strings.Contains(got, "victim") {
				t.Errorf("the backend saw %q, want %q", got, test.reaches)
			}
		})
	}
}

// answersOn reads what comes back, and tells how many answers there were and the first one's code.
func answersOn(conn net.Conn, want int) (answers, first int) {
	reader := bufio.NewReader(conn)
	for {
		// Those that are wanted have all the time; another one would follow at once.
		wait := 10 * time.Second
		if answers >= want {
			wait = 150 * time.Millisecond
		}
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return answers, first
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if answers++; answers == 1 {
			first = response.StatusCode
		}
	}
}

// What leaves for the endpoint, byte by byte, is written anew: one length or chunks, every line ended by CRLF, names that
// are tokens, no fold, no control character, nothing that the client says about its address. A reader less careful than
// Go's cannot read it in two ways.
func TestSmuggledBytes(t *testing.T) {
	t.Parallel()
	withAndWithout(t, testSmuggledBytes)
}

func testSmuggledBytes(t *testing.T, start starter) {
	for name, test := range smuggling() {
		t.Run(name, func(t *testing.T) {
			addr, received := recorder(t)
			r := start(t, Settings{Pool: pool(addr)})
			conn, err := net.Dial("tcp", r.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, test.raw)
			answersOn(conn, 1)
			_ = conn.Close()
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			for _, text := range received() {
				// After the body of one request on a kept connection there may be the next.
				for rest := text; rest != ""; {
					rest = oneRequest(t, rest)
				}
			}
		})
	}
}

// rawEndpoint serves each connection that it takes by a function, and closes it then. stop ends it, and waits for all.
func rawEndpoint(t testing.TB, serve func(net.Conn)) (addr string, stop func()) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	stop = sync.OnceFunc(func() {
		_ = listener.Close()
		group.Wait()
	})
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

// recorder is an endpoint that answers whatever it gets and keeps the bytes of each connection.
func recorder(t *testing.T) (addr string, received func() []string) {
	t.Helper()
	var mu sync.Mutex
	var texts []string
	addr, stop := rawEndpoint(t, func(conn net.Conn) {
		var text bytes.Buffer
		reader := bufio.NewReader(io.TeeReader(conn, &text))
		for {
			request, err := http.ReadRequest(reader)
			if err != nil {
				break
			}
			_, _ = io.Copy(io.Discard, request.Body)
			_, _ = io.WriteString(conn, fine)
		}
		mu.Lock()
		defer mu.Unlock()
		texts = append(texts, text.String())
	})
	return addr, func() []string {
		stop()
		return texts
	}
}

var (
	plainLine  = regexp.MustCompile(`^[A-Za-z]+ (/[!-~]*|\*) HTTP/1\.1$`)
	plainField = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\\x00-\\x08\\x0a-\\x1f\\x7f]*$")
	plainChunk = regexp.MustCompile(`^[0-9a-f]+$`)
)

// oneRequest holds one request on the wire to the strict grammar and returns what follows.
func oneRequest(t *testing.T, text string) (rest string) {
	t.Helper()
	head, rest, whole := strings.Cut(text, "\r\n\r\n")
	lines := strings.Split(head, "\r\n")
	if !whole || !plainLine.MatchString(lines[0]) {
		t.Fatalf("not a plain request: %q", text)
	}
	fields := map[string][]string{}
	for _, line := range lines[1:] {
		if !plainField.MatchString(line) {
			t.Errorf("not a plain field: %q", line)
		}
		name, value, _ := strings.Cut(line, ": ")
		fields[strings.ToLower(name)] = append(fields[strings.ToLower(name)], value)
	}
	if got := fields["x-forwarded-for"]; len(got) != 1 || got[0] != "127.0.0.1" {
		t.Errorf("X-Forwarded-For is %q", got)
	}
	if strings.Contains(text, "192.0.2.66") {
		t.Errorf("a trailer's address passed: %q", text)
	}
	if got := fields["upgrade"]; got != nil {
		t.Errorf("asks to upgrade to %q", got)
	}
	length, coding := fields["content-length"], fields["transfer-encoding"]
	switch {
	case len(length)+len(coding) > 1:
		t.Errorf("lengths %q, codings %q", length, coding)
	case len(length) == 1:
		n, err := strconv.Atoi(length[0])
		if err != nil || n > len(rest) {
			return "" // the client's body was torn, and so is this one
		}
		return rest[n:]
	case len(coding) == 1:
		for {
			size, after, ok := strings.Cut(rest, "\r\n")
			if !ok {
				return "" // torn
			}
			n, err := strconv.ParseUint(size, 16, 31)
			if err != nil || !plainChunk.MatchString(size) {
				t.Fatalf("chunk size %q", size)
			}
			if int(n)+2 > len(after) {
				return "" // torn
			}
			rest = after[n+2:]
			if n == 0 {
				return rest
			}
		}
	}
	return rest
}

// A header beyond the limit is refused, not read to its end.
func TestHeaderLimit(t *testing.T) { withAndWithout(t, testHeaderLimit) }

func testHeaderLimit(t *testing.T, start starter) {
	r := start(t, Settings{Pool: pool(), MaxHeader: 8 << 10})
	code, _ := r.get(t, "/", "X-Large", strings.Repeat("x", 16<<10))
	if code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %d", code)
	}
}
