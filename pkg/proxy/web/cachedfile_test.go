package web

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// cachedFiles is a handler that has one file in memory.
type cachedFiles struct{ cached, closed, served, asked atomic.Int64 }

const cachedText = "from memory"

func (h *cachedFiles) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	h.asked.Add(1)
	_, _ = io.WriteString(w, "by net/http")
}

func (h *cachedFiles) Cached(path string) CachedFile {
	switch path {
	case "/broken":
		return brokenFile{cachedFile{h}}
	case "/hung":
		h.cached.Add(1)
		return hungFile{cachedFile{h}}
	case "/a b":
	default:
		return nil
	}
	h.cached.Add(1)
	return cachedFile{h}
}

type cachedFile struct{ of *cachedFiles }

func (f cachedFile) AppendHeader(b []byte) []byte {
	return fmt.Appendf(b, "200 OK\r\nContent-Length: %d\r\n", len(cachedText))
}
func (f cachedFile) Size() int64                          { return int64(len(cachedText)) }
func (f cachedFile) InMemory(offset int64) (int64, error) { return f.Size() - offset, nil }
func (f cachedFile) Load(int64, <-chan struct{}) error    { return nil }
func (f cachedFile) Send(socket int, offset, n int64) (int64, error) {
	sent, err := unix.Write(socket, []byte(cachedText[offset:offset+n]))
	return int64(sent), err
}
func (f cachedFile) Close()                                   { f.of.closed.Add(1) }
func (f cachedFile) Served(n int64, _ time.Duration, _ error) { f.of.served.Add(n) }

var _ http1.File = cachedFile{}

// Which requests are answered with a file from memory, in the loop, and which are the handler's.
func TestCachedFile(t *testing.T) {
	for name, test := range map[string]struct {
		request string
		memory  bool
		gate    Gate
	}{
		"file":            {"GET /a%20b HTTP/1.1\r\nHost: h\r\n\r\n", true, nil},
		"with a query":    {"GET /a%20b?c=/d HTTP/1.1\r\nHost: h\r\nAccept: *\r\n\r\n", true, nil},
		"another":         {"GET /a HTTP/1.1\r\nHost: h\r\n\r\n", false, nil},
		"a range":         {"GET /a%20b HTTP/1.1\r\nHost: h\r\nRANGE: bytes=0-1\r\n\r\n", false, nil},
		"a condition":     {"GET /a%20b HTTP/1.1\r\nHost: h\r\nif-range: \"x\"\r\n\r\n", false, nil},
		"not plain":       {"GET /a%20b HTTP/1.1\r\nHost: h\r\nVia: 1.1 a\r\n\r\n", false, nil},
		"a POST":          {"POST /a%20b HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", false, nil},
		"a gate":          {"GET /a%20b HTTP/1.1\r\nHost: h\r\n\r\n", false, &passing{}},
		"a word with if-": {"GET /a%20b HTTP/1.1\r\nHost: h\r\nIfx: a\r\n\r\n", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := &cachedFiles{}
			r := start(t, Settings{Handler: h, Gate: test.gate})
			c := r.talk(t)
			for range 2 {
				if _, body := c.ask(t, test.request); strings.HasPrefix(body, "from memory") != test.memory {
					t.Errorf("got %q", body)
				}
			}
			eventually(t, "the requests are counted", r.settled)
			eventually(t, "the files are closed", func() bool { return h.closed.Load() == h.cached.Load() })
			want := int64(0)
			if test.memory {
				want = 2
			}
			if n := h.cached.Load(); n != want || h.served.Load() != n*int64(len(cachedText)) ||
				h.asked.Load() != 2-want {
				t.Errorf("%d files from memory, %d bytes, %d by net/http; want %d of two",
					n, h.served.Load(), h.asked.Load(), want)
			}
			if n := testutil.ToFloat64(r.requests.WithLabelValues("r", "200")); n != 2 {
				t.Errorf("%v requests are counted", n)
			}
		})
	}
}

// brokenFile is a file that cannot be read.
type brokenFile struct{ cachedFile }

func (brokenFile) InMemory(int64) (int64, error) { return 0, io.ErrUnexpectedEOF }

// A file that breaks off is counted and logged as torn, and the client sees that it is not whole.
func TestBrokenCachedFile(t *testing.T) {
	var log lockedLog
	s := Settings{Handler: &cachedFiles{}}
	s.AccessLog = "errors"
	r := startLogged(t, s, &log)
	c := r.talk(t)
	_, _ = io.WriteString(c.Conn, "GET /broken HTTP/1.1\r\nHost: h\r\n\r\n")
	response, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("got %q whole", body)
	}
	eventually(t, "the request is counted", r.settled)
	if n := testutil.ToFloat64(r.failures.WithLabelValues("r", "torn")); n != 1 {
		t.Errorf("%v torn answers are counted", n)
	}
	eventually(t, "the request is logged", func() bool { return strings.Contains(log.String(), "torn=true") })
}

// hungFile is a file on a disk that hangs.
type hungFile struct{ cachedFile }

func (hungFile) InMemory(int64) (int64, error) { return 0, nil }

func (hungFile) Load(_ int64, stop <-chan struct{}) error {
	<-stop
	return os.ErrClosed
}

// The end of the program does not wait for a disk that hangs: each client that waits for it sees the end of its
// connection, and the file is closed.
func TestDrainWhileTheDiskHangs(t *testing.T) {
	h := &cachedFiles{}
	config := Config{
		Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: Settings{Handler: h}, Loops: loops(t),
		Logger: slog.New(slog.DiscardHandler),
	}
	config.Drain = 200 * time.Millisecond
	r := startBy(t, config)
	const clients = 100
	var all []net.Conn
	for range clients {
		c, err := net.Dial("tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, "GET /hung HTTP/1.1\r\nHost: h\r\n\r\n")
		all = append(all, c)
	}
	eventually(t, "all wait", func() bool { return h.cached.Load() == clients })
	_ = r.stop() // an error tells of those who were cut off
	for _, c := range all {
		if got, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) || strings.Contains(string(got), cachedText) {
			t.Fatalf("a client that waits got %q, %v", got, err)
		}
	}
	eventually(t, "the files are closed", func() bool { return h.closed.Load() == clients })
}
