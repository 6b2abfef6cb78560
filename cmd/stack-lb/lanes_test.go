package main

import (
	"context"
	"encoding/pem"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/lb/elect"
)

// counted counts the connections of a listener.
type counted struct {
	net.Listener
	accepted, open atomic.Int32
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.accepted.Add(1)
		c.open.Add(1)
		conn = &countedConn{Conn: conn, closed: sync.OnceFunc(func() { c.open.Add(-1) })}
	}
	return conn, err
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

// newAPIServer is an API server whose answers wait until they may be given.
func newAPIServer(t *testing.T) (server *httptest.Server, connections *counted, waiting *atomic.Int32, answer chan struct{}) {
	t.Helper()
	waiting, answer = &atomic.Int32{}, make(chan struct{})
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		waiting.Add(1)
		defer waiting.Add(-1)
		select {
		case <-answer:
		case <-r.Context().Done():
		}
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	connections = &counted{Listener: server.Listener}
	server.Listener, server.EnableHTTP2 = connections, true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, connections, waiting, answer
}

// client is that for leases.
func client(t *testing.T, config *rest.Config, times elect.Times) *http.Client {
	t.Helper()
	transport, err := newLanes(config, times)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Client{Transport: transport}
}

func get(ctx context.Context, c *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// many sends requests at one time, and returns their errors.
func many(ctx context.Context, c *http.Client, url string, requests int) []error {
	faults := make([]error, requests)
	var sending sync.WaitGroup
	for i := range requests {
		sending.Go(func() { faults[i] = get(ctx, c, url) })
	}
	sending.Wait()
	return faults
}

// Renewals of a hundred addresses that wait for a slow API have few connections, and none waits for another to be answered.
func TestRenewalsThatWaitShareConnections(t *testing.T) {
	server, connections, waiting, answer := newAPIServer(t)
	patient := elect.Times{Deadline: time.Minute, Retry: 20 * time.Second}
	c := client(t, &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, patient)
	const requests = 300
	var faults []error
	var sending sync.WaitGroup
	sending.Go(func() { faults = many(t.Context(), c, server.URL, requests) })
	testwait.Until(t, "all requests at the server", func() bool { return waiting.Load() == requests })
	close(answer)
	sending.Wait()
	for _, err := range faults {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := connections.accepted.Load(); n > laneCount*laneWidth {
		t.Errorf("%d connections", n)
	}
}

// An API that accepts connections, or whose host does, and says nothing, is given up after a deadline, by few connections
// at a time.
func TestConnectionsThatHangAreFew(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	connections := &counted{Listener: listener}
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := connections.Accept()
			if err != nil {
				return
			}
			accepting.Go(func() {
				defer conn.Close()
				for b := make([]byte, 1024); ; {
					if _, err := conn.Read(b); err != nil {
						return
					}
				}
			})
		}
	})
	times := elect.Times{Lease: 3 * time.Second, Deadline: time.Second, Retry: 300 * time.Millisecond}
	c := client(t, &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, times)
	ctx, stop := context.WithTimeout(t.Context(), 2*times.Deadline)
	defer stop()
	most := atomic.Int32{}
	var watching sync.WaitGroup
	watching.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			most.Store(max(most.Load(), connections.open.Load()))
		}
	})
	for _, err := range many(ctx, c, "https://"+listener.Addr().String(), 100) {
		if err == nil {
			t.Error("a request was answered")
		}
	}
	watching.Wait()
	if n := most.Load(); n == 0 || n > 2*laneCount*laneWidth { // some are counted that the client has closed
		t.Errorf("%d connections at a time", n)
	}
	if n := connections.accepted.Load(); n <= laneCount*laneWidth {
		t.Errorf("%d connections in all: those that hang are kept", n)
	}
	_ = listener.Close()
	accepting.Wait()
}

// A cluster whose authority was replaced is reached by the file of the new one.
func TestAuthorityOfTheClusterChanges(t *testing.T) {
	server, _, _, answer := newAPIServer(t)
	close(answer)
	other, _, err := cert.GenerateSelfSignedCertKey("other", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	write := func(text []byte) {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(other)
	patient := elect.Times{Deadline: time.Minute, Retry: 20 * time.Second}
	c := client(t, &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: file}}, patient)
	for range laneCount {
		if get(t.Context(), c, server.URL) == nil {
			t.Fatal("trusts a server that is not of the authority")
		}
	}
	write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	for range laneCount {
		_ = get(t.Context(), c, server.URL) // finds out
	}
	for range laneCount {
		if err := get(t.Context(), c, server.URL); err != nil {
			t.Error(err)
		}
	}
}

// An API that is busy (429, with Retry-After) is asked again by the elector alone, at its own time: client-go would ask
// ten times beside it.
func TestBusyAPIIsAskedOnce(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	leases, err := newLeases(&rest.Config{Host: server.URL}, elect.Times{Deadline: time.Minute, Retry: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	_, err = leases.Leases("stack").Get(t.Context(), "stack-lb-192-0-2-10", meta.GetOptions{})
	if !apierrors.IsTooManyRequests(err) || asked.Load() != 1 {
		t.Errorf("asked %d times: %v", asked.Load(), err)
	}
}
