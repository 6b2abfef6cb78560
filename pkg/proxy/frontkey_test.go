package proxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/route"
)

// slowServer answers with bytes for as long as it is not told to end.
func slowServer(t *testing.T) (b route.Backend, end func()) {
	t.Helper()
	stop := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/slow" {
			_, _ = io.WriteString(w, r.Host)
			return
		}
		for {
			select {
			case <-stop:
				_, _ = io.WriteString(w, "end")
				return
			case <-r.Context().Done():
				return
			case <-time.After(20 * time.Millisecond):
				_, _ = io.WriteString(w, ".")
				_ = http.NewResponseController(w).Flush()
			}
		}
	}))
	t.Cleanup(s.Close)
	at := netip.MustParseAddrPort(s.Listener.Addr().String())
	return route.Backend{Host: at.Addr().String(), Port: at.Port()}, sync.OnceFunc(func() { close(stop) })
}

// Routes share a port by their hosts. Whatever becomes of the first of them, the others are untouched: no connection is
// refused, and a download goes on for as long as it takes. So it is for other reading of requests.
func TestOtherRoutesOfAPortAreUntouched(t *testing.T) {
	backend, end := slowServer(t)
	defer end()
	l, elsewhere := free(t), free(t)
	host := func(name string, p route.Protocol, at route.Listen) route.Route {
		r := row(name, p, at, backend)
		r.Hosts = []string{name + ".example"}
		r.Timeouts.Drain = setting.Duration(200 * time.Millisecond)
		return r
	}
	b := host("b", route.HTTP, l)
	idle := b
	idle.Timeouts.Idle = setting.Duration(time.Hour)
	with := func(first route.Route, others ...route.Route) route.Table {
		return table(append([]route.Route{first}, others...)...)
	}
	a, c := host("a", route.HTTP, l), host("c", route.HTTP, l)
	steps := map[string]route.Table{
		"the first goes":         with(b, c),
		"another comes before":   with(host("aa", route.HTTP, l), a, b, c),
		"the first moves":        with(host("a", route.HTTP, elsewhere), b, c),
		"the first becomes gRPC": with(host("a", route.GRPC, l), b, c),
		"they change places":     with(c, b, a),
		"times":                  with(idle, c),
	}
	for name, next := range steps {
		t.Run(name, func(t *testing.T) {
			r := start(t, Options{Table: with(a, b, c)})
			waitReady(t, r)
			get := func(ctx context.Context, path string) (string, error) {
				request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+l.AddrPort().String()+path, nil)
				request.Host = "b.example"
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext}}
				answer, err := client.Do(request)
				if err != nil {
					return "", err
				}
				defer answer.Body.Close()
				text, err := io.ReadAll(answer.Body)
				if err == nil && answer.StatusCode != http.StatusOK {
					err = fmt.Errorf("status %d: %s", answer.StatusCode, text)
				}
				return string(text), err
			}
			downloads := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			began := make(chan struct{})
			go func() {
				close(began)
				_, err := get(ctx, "/slow")
				downloads <- err
			}()
			<-began
			time.Sleep(50 * time.Millisecond)
			var asked atomic.Int64
			var load sync.WaitGroup
			stop := make(chan struct{})
			for range 4 {
				load.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if text, err := get(t.Context(), "/"); err != nil || text != "b.example" {
							t.Errorf("got %q, %v", text, err)
							return
						}
						asked.Add(1)
					}
				})
			}
			for range 5 {
				r.apply(t, next)
				time.Sleep(20 * time.Millisecond)
				r.apply(t, with(a, b, c))
				time.Sleep(20 * time.Millisecond)
			}
			r.apply(t, next)
			time.Sleep(500 * time.Millisecond) // longer than the drain
			close(stop)
			load.Wait()
			select {
			case err := <-downloads:
				t.Errorf("the download ended: %v", err)
			default:
			}
			cancel()
			if err := <-downloads; err == nil || !strings.Contains(err.Error(), "canceled") {
				t.Errorf("the download ended with %v", err)
			}
			if asked.Load() == 0 {
				t.Error("nothing was asked")
			}
		})
	}
}
