package tftp

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/tftp/loader"
	"github.com/tinkerbell/stack/pkg/record"
)

// keeping is a front on loopback, before a server that gives its files by TFTP and by HTTP.
type keeping struct {
	*Front
	config        Config
	asked, byHTTP *atomic.Int32
}

func keep(t *testing.T, c Config, files map[string][]byte) *keeping {
	t.Helper()
	k := &keeping{asked: new(atomic.Int32), byHTTP: new(atomic.Int32)}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, ok := files[strings.TrimPrefix(r.URL.Path, "/ipxe/")]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		k.byHTTP.Add(1)
		_, _ = w.Write(data)
	}))
	t.Cleanup(web.Close)
	_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
	open := func() (*net.UDPConn, error) { return net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}) }
	conn, err := open()
	if err != nil {
		t.Fatal(err)
	}
	fs := &fileServer{files: files, smee: true, singlePort: true, onRequest: func() { k.asked.Add(1) }}
	var running sync.WaitGroup
	stop := make(chan struct{})
	running.Go(func() { fs.serve(conn, open, stop, &running) })
	c.Pick, c.Loaders = to(conn.LocalAddr().String()), ":"+port+"/ipxe/"
	k.config = c
	k.listen(t)
	t.Cleanup(func() {
		close(stop)
		_ = conn.Close()
		running.Wait()
	})
	return k
}

// listen serves the front until the test's end.
func (k *keeping) listen(t *testing.T) {
	t.Helper()
	c := &k.config
	c.Route, c.Listen = "tftp", netip.MustParseAddrPort("127.0.0.1:0")
	c.Metrics = NewMetrics(prometheus.NewRegistry())
	var err error
	if k.Front, err = Listen(*c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// get asks the front, and direct any server.
func (k *keeping) get(t *testing.T, c fetch) ([]byte, error) {
	t.Helper()
	return k.direct(t, k.Addr().String(), c)
}

func (*keeping) direct(t *testing.T, server string, c fetch) ([]byte, error) {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c.local = conn
	return c.run(nil, server)
}

func (k *keeping) answers(a loader.Answer) int { return int(counter(k.handler.meters.loaders[a])) }

// kept asks for a loader until it comes from memory.
func (k *keeping) kept(t *testing.T, name string, want []byte) {
	t.Helper()
	testwait.Until(t, name+" from memory", func() bool {
		before := k.answers(loader.Memory)
		if got, err := k.get(t, fetch{file: name}); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: got %d bytes, %v", name, len(got), err)
		}
		return k.answers(loader.Memory) > before
	})
}

// locked is a log that several write.
type locked struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestLoadersAreServedFromMemory(t *testing.T) {
	const trace = "-00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	var mu sync.Mutex
	var told []record.Exchange
	files := map[string][]byte{"undionly.kpxe": content(70_001), "ipxe.efi": content(300_000), "other": content(700)}
	var log locked
	k := keep(t, Config{Logger: slog.New(slog.NewJSONHandler(&log, nil)), Sink: func(x record.Exchange) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, x)
	}}, files)
	for name := range files {
		if name != "other" {
			k.kept(t, name, files[name])
		}
	}
	before, byHTTP := k.asked.Load(), k.byHTTP.Load()
	for _, name := range []string{
		"undionly.kpxe", "/undionly.kpxe", "52:54:00:00:00:01/ipxe.efi", "ipxe.efi" + trace,
		"52-54-00-00-00-01/undionly.kpxe" + trace,
	} {
		plain, _, _ := strings.Cut(name[strings.LastIndex(name, "/")+1:], "-00-")
		for _, options := range [][]string{
			nil, {"tsize", "0", "blksize", "1468"}, {"blksize", "1468", "windowsize", "4"}, {"blksize", "65464"},
		} {
			mu.Lock()
			told = nil
			mu.Unlock()
			if got, err := k.get(t, fetch{file: name, options: options}); err != nil || !bytes.Equal(got, files[plain]) {
				t.Errorf("%s %v: got %d bytes, %v", name, options, len(got), err)
			}
			testwait.Until(t, "recorded", func() bool { // as of a transfer that is passed on
				mu.Lock()
				defer mu.Unlock()
				is := func(outcome record.Outcome, bytes int) bool {
					return slices.ContainsFunc(told, func(x record.Exchange) bool {
						return x.Name == name && x.Outcome == outcome && x.Bytes == uint64(bytes)
					})
				}
				return is(record.Began, 0) && is(record.Done, len(files[plain]))
			})
		}
	}
	if got := k.asked.Load() - before; got != 0 || k.byHTTP.Load() != byHTTP {
		t.Errorf("the server was asked %d times, by HTTP %d", got, k.byHTTP.Load()-byHTTP)
	}
	for _, want := range []string{`"loader kept","loader":"ipxe.efi@`, `"loader":"undionly.kpxe@`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in the log: %s", want, log.String())
		}
	}
	for _, file := range []string{"other", "foo/ipxe.efi"} {
		before := k.asked.Load()
		_, _ = k.get(t, fetch{file: file, tries: 1})
		if k.asked.Load() == before {
			t.Errorf("the server was not asked for %s", file)
		}
	}
	before = k.asked.Load()
	conn, err := net.Dial("udp4", k.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("\x00\x01undionly.kpxe\x00netascii\x00")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "the server is asked for a text", func() bool { return k.asked.Load() > before })
}

// A transfer that has begun ends from memory, whatever becomes of the setting.
func TestLoadersAreTurnedOff(t *testing.T) {
	want := content(5000)
	k := keep(t, Config{}, map[string][]byte{"ipxe.efi": want})
	k.kept(t, "ipxe.efi", want)
	off := k.config
	off.Loaders = ""
	once := sync.OnceFunc(func() { k.Update(off) })
	blocks := 0
	got, err := k.get(t, fetch{file: "ipxe.efi", lose: func() bool { // of the client's datagrams, none is lost
		if blocks++; blocks == 4 {
			once()
		}
		return false
	}})
	if before := k.asked.Load(); err != nil || !bytes.Equal(got, want) || before == 0 {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	before, byHTTP, memory := k.asked.Load(), k.byHTTP.Load(), k.answers(loader.Memory)
	if got, err := k.get(t, fetch{file: "ipxe.efi"}); err != nil || !bytes.Equal(got, want) {
		t.Errorf("off: got %d bytes, %v", len(got), err)
	}
	if k.asked.Load() != before+1 || k.byHTTP.Load() != byHTTP || k.answers(loader.Memory) != memory {
		t.Error("off: the server was not asked, or asked too much")
	}
}

// A machine whose file is chosen by its address gets its own.
func TestLoadersAreNotKeptForTransparentRoutes(t *testing.T) {
	h := &handler{
		config: Config{Transparent: true}, loaders: loader.New(loader.Config{At: ":1/"}), meters: (*Metrics)(nil).of(""),
	}
	if got := h.loader("ipxe.efi", time.Now()); got != nil {
		t.Errorf("got %s", got)
	}
	if got := counter(h.meters.loaders[loader.Checking]); got != 0 {
		t.Errorf("%v looked up", got)
	}
}
