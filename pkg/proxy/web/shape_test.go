package web

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/shaper"
)

// shapers is a group with the rate of the route r, in bits a second.
func shapers(bits int64) *shaper.Group {
	g := shaper.NewGroup()
	g.SetRate("r", bits)
	return g
}

// rated starts fronts that have a rate which is no obstacle.
func rated(start starter) starter {
	return func(t *testing.T, s Settings, log ...io.Writer) running {
		s.Rate = 1e9
		s.Shaper = shapers(s.Rate).Route("r")
		return start(t, s, log...)
	}
}

// granted is how many bytes the routes of a group were let send.
func granted(t *testing.T, g *shaper.Group) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(g)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != "stack_proxy_rate_sent_bytes_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum
}

// image writes a file of so many bytes, and returns its name with them.
func image(t *testing.T, size int) (name string, content []byte) {
	t.Helper()
	name, content = filepath.Join(t.TempDir(), "image"), make([]byte, size)
	_, _ = rand.Read(content)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return name, content
}

// serving is a handler of the file of that name.
type serving string

func (s serving) ServeHTTP(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, string(s)) }

func certificate(t *testing.T, protocols ...string) *tls.Config {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	server.StartTLS()
	defer server.Close()
	return &tls.Config{Certificates: server.TLS.Certificates, NextProtos: protocols}
}

// By whichever way an answer goes, all of its bytes are taken from the rate, and it takes the time for that.
func TestWaysHoldTheRate(t *testing.T) {
	const bits, size = 16e6, 1 << 20
	name, content := image(t, size)
	endpoint := backend(t, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, name) })
	for way, test := range map[string]struct {
		settings Settings
		header   [2]string
		http2    bool
	}{
		"plain":                 {settings: Settings{Pool: pool(endpoint)}},
		"pool":                  {settings: Settings{Pool: pool(endpoint)}, header: [2]string{"Via", "1.1 a"}},
		"Transport":             {settings: Settings{Pool: pool(endpoint)}, header: [2]string{"Te", "trailers"}},
		"TLS, to a backend":     {settings: Settings{Pool: pool(endpoint), TLS: certificate(t, "http/1.1")}},
		"HTTP/2, to a backend":  {settings: Settings{Pool: pool(endpoint), TLS: certificate(t, "h2")}, http2: true},
		"file":                  {settings: Settings{Handler: serving(name)}},
		"file, parts":           {settings: Settings{Handler: serving(name)}, header: [2]string{"Range", "bytes=0-,0-0"}},
		"file by TLS":           {settings: Settings{Handler: serving(name), TLS: certificate(t, "http/1.1")}},
		"file by HTTP/2":        {settings: Settings{Handler: serving(name), TLS: certificate(t, "h2")}, http2: true},
		"file of another route": {settings: Settings{Handler: http.NotFoundHandler(), Hosts: []string{"other"}}},
	} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			g, s := shapers(bits), test.settings
			s.Shaper, s.Rate = g.Route("r"), bits
			if way == "file of another route" {
				s.Sites = []Site{{Route: "r2", Settings: Settings{Handler: serving(name), Shaper: s.Shaper, Rate: bits}}}
				s.Shaper, s.Rate = nil, 0
			}
			r := start(t, s)
			transport := r.http.Transport.(*http.Transport)
			url := r.url
			if s.TLS != nil {
				transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
				transport.ForceAttemptHTTP2 = test.http2
				url = strings.Replace(url, "http:", "https:", 1)
			}
			request, _ := http.NewRequest(http.MethodGet, url, nil)
			if test.header[0] != "" {
				request.Header.Set(test.header[0], test.header[1])
			}
			begun := time.Now()
			response, err := r.http.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			took := time.Since(begun)
			if err != nil || !bytes.Contains(body, content) || (response.ProtoMajor == 2) != test.http2 {
				t.Fatalf("got %d bytes by %s, %v", len(body), response.Proto, err)
			}
			if n := granted(t, g); n < size || n > size*1.05 {
				t.Errorf("%.0f bytes were taken from the rate, of %d", n, size)
			}
			if least := time.Duration(size * 8 / bits * .9 * float64(time.Second)); took < least {
				t.Errorf("took %v, which is less than %v", took, least)
			}
		})
	}
}

// Answers of net/http's server that are under way follow a rate that comes, changes and goes; the engine's next ones do.
// Nothing of them is lost.
func TestRateChangesUnderWay(t *testing.T) {
	const size = 64 << 20 // more than the sockets' buffers hold
	name, content := image(t, size)
	endpoint := backend(t, func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, name) })
	for way, s := range map[string]Settings{
		"plain":          {Pool: pool(endpoint)},
		"file":           {Handler: serving(name)},
		"file by HTTP/2": {Handler: serving(name), TLS: certificate(t, "h2")},
	} {
		t.Run(way, func(t *testing.T) {
			g := shapers(0)
			s.Shaper = g.Route("r")
			r := start(t, s)
			url := r.url
			if s.TLS != nil {
				r.http.Transport = &http.Transport{
					TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true,
				}
				defer r.http.CloseIdleConnections()
				url = strings.Replace(url, "http:", "https:", 1)
			}
			response, err := r.http.Get(url)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			got := make([]byte, 1<<20)
			if _, err := io.ReadFull(response.Body, got); err != nil {
				t.Fatal(err)
			}
			change := func(bits int64) {
				g.SetRate("r", bits)
				s.Rate = bits
				r.Update(s)
			}
			change(800e6)
			more := make([]byte, size/2)
			if _, err := io.ReadFull(response.Body, more); err != nil {
				t.Fatal(err)
			}
			if n := granted(t, g); n == 0 && way != "plain" {
				t.Error("nothing was taken from the new rate")
			}
			change(1) // whatever waits now would do so for ever
			time.Sleep(50 * time.Millisecond)
			change(0)
			rest, err := io.ReadAll(response.Body)
			if err != nil || !bytes.Equal(append(append(got, more...), rest...), content) {
				t.Errorf("got %d bytes, %v", len(got)+len(more)+len(rest), err)
			}
		})
	}
}

// shareOf is the part of what two client addresses receive in two seconds, 0 to 1, that goes to the one with several
// connections; the other one has a single connection. Each connection sends the request, and reads without end.
func shareOf(t *testing.T, server netip.AddrPort, request string, several int) float64 {
	t.Helper()
	const many, single = "127.0.0.2", "127.0.0.3"
	var mu sync.Mutex
	got, stop := map[string]float64{}, make(chan struct{})
	var group sync.WaitGroup
	for from, connections := range map[string]int{many: several, single: 1} {
		for range connections {
			group.Go(func() {
				dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
				c, err := dialer.Dial("tcp", server.String())
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				_, _ = io.WriteString(c, request)
				for buffer := make([]byte, 64<<10); ; {
					n, err := c.Read(buffer)
					select {
					case <-stop:
						return
					default:
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					got[from] += float64(n)
					mu.Unlock()
				}
			})
		}
	}
	testwait.Until(t, "both addresses get something", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == 2
	})
	time.Sleep(200 * time.Millisecond) // the connections are not made at one moment
	mu.Lock()
	clear(got)
	mu.Unlock()
	time.Sleep(2 * time.Second)
	mu.Lock()
	share := got[many] / (got[many] + got[single])
	t.Logf("received, in bytes: %v", got)
	mu.Unlock()
	close(stop)
	group.Wait()
	return share
}

// Of two addresses one opens six connections: both get as much.
func TestAddressesShareTheRate(t *testing.T) {
	const bits = 4e6 // a turn takes 8 ms: a machine that is late by a few loses nobody a turn
	name, _ := image(t, 64<<20)
	g := shapers(bits)
	r := start(t, Settings{Handler: serving(name), Shaper: g.Route("r"), Rate: bits})
	share := shareOf(t, r.Addr(), "GET / HTTP/1.1\r\nHost: h\r\n\r\n", 6)
	if share < .45 || share > .55 { // by connections it would be .8 and more
		t.Errorf("the one with six connections has %.3f of all", share)
	}
}

// A client that is slow because we make it wait is not given up, however short a pause it may make itself.
func TestWaitForTheRateIsNoStall(t *testing.T) {
	name, content := image(t, 3<<12)
	const bits = 64e3 // a turn takes half a second
	g := shapers(bits)
	r := start(t, Settings{
		Handler: serving(name), Shaper: g.Route("r"), Rate: bits, Timeouts: Timeouts{Stall: 100 * time.Millisecond},
	})
	if code, body := r.get(t, "/"); code != http.StatusOK || body != string(content) {
		t.Errorf("got %d, %d bytes", code, len(body))
	}
}

// What still waits for its share at the end of a drain is closed, and leaves nothing behind.
func TestDrainEndsWaits(t *testing.T) {
	name, _ := image(t, 1<<20)
	const bits = 1000
	r := startBy(t, Config{Listen: netip.MustParseAddrPort("127.0.0.1:0"), Settings: Settings{
		Handler: serving(name), Shaper: shapers(bits).Route("r"), Rate: bits, Drain: 300 * time.Millisecond,
	}})
	c := r.talk(t)
	_, _ = io.WriteString(c.Conn, plainGet)
	for r.Active() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, c.Conn); err == nil && r.Active() > 0 {
		t.Error("the connection is open")
	}
}

// What a rate that may come costs a small request on each way while there is none.
func BenchmarkShaperOff(b *testing.B) {
	for name, s := range map[string]*shaper.Shaper{"none": nil, "off": shapers(0).Route("r")} {
		b.Run(name, func(b *testing.B) {
			c := &conn{flow: shaper.Flow{Shaper: s}}
			out := &response{ResponseWriter: httptest.NewRecorder()}
			request := httptest.NewRequest(http.MethodGet, "/", nil)
			settings := &Settings{Shaper: s}
			b.ReportAllocs()
			for b.Loop() {
				out.setFlow(request, settings, c)
				if c.flow.Shaper.On() || out.flow.Shaper.On() {
					b.Fatal("on")
				}
			}
		})
	}
}
