package web

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/tinkerbell/stack/internal/testwait"
)

// h2c is a backend that speaks HTTP/2 without TLS.
func h2c(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewUnstartedServer(h)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL
}

func (r *running) speakH2C(t *testing.T) {
	t.Helper()
	transport := &http.Transport{Protocols: new(http.Protocols)}
	transport.Protocols.SetUnencryptedHTTP2(true)
	r.http = &http.Client{Transport: transport}
	t.Cleanup(transport.CloseIdleConnections)
}

// A bidirectional stream: each message comes back before the next is sent, and the trailers arrive.
func TestGRPCStream(t *testing.T) {
	r := start(t, Settings{GRPC: true, Pool: pool(h2c(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.Header().Set("Seen", r.Header.Get("X-Forwarded-For")+" "+r.Header.Get("Te"))
		buffer := make([]byte, 100)
		for {
			n, err := r.Body.Read(buffer)
			_, _ = w.Write(bytes.ToUpper(buffer[:n]))
			_ = http.NewResponseController(w).Flush()
			if err != nil {
				break
			}
		}
		w.Header().Set("Grpc-Status", "0")
	}))})
	r.speakH2C(t)
	out, in := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/s/Echo", out)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	go func() { _, _ = in.Write([]byte("first")) }()
	response, err := r.http.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	buffer := make([]byte, 100)
	for i, want := range []string{"FIRST", "SECOND", "THIRD"} {
		if i > 0 {
			_, _ = in.Write(bytes.ToLower([]byte(want)))
		}
		n, err := response.Body.Read(buffer)
		if string(buffer[:n]) != want {
			t.Fatalf("got %q, %v; want %q", buffer[:n], err, want)
		}
	}
	_ = in.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Error(err)
	}
	if got := response.Trailer.Get("Grpc-Status"); got != "0" {
		t.Errorf("the trailer says %q", got)
	}
	if got := response.Header.Get("Seen"); got != "127.0.0.1 trailers" {
		t.Errorf("the backend saw %q", got)
	}
}

// An answer of trailers only stays one: its header block ends the stream. With a flush in between, a gRPC client would
// find headers without trailers, and call it an internal error. On a busy node, and where the backend's own end of the
// stream comes late, the answer's copy takes longer than flushAfter.
func TestGRPCTrailersOnly(t *testing.T) {
	r := start(t, Settings{GRPC: true, Pool: pool(h2c(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "3")
		w.Header().Set("Grpc-Message", "invalid worker id")
		if r.URL.Path == "/s/Late" {
			w.Header().Set("Content-Length", "0")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(10 * flushAfter)
		}
	}))})
	conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	framer := http2.NewFramer(conn, conn)
	_ = framer.WriteSettings()
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for stream := uint32(1); stream < 200; stream += 2 {
		path := "/s/Call"
		if stream%20 == 1 {
			path = "/s/Late"
		}
		block.Reset()
		for _, field := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":authority", "tink"}, {":path", path}, {"content-type", "application/grpc"},
		} {
			_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
		}
		if err := framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: stream, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true,
		}); err != nil {
			t.Fatal(err)
		}
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if headers, ok := frame.(*http2.HeadersFrame); ok && headers.StreamID == stream {
				if !headers.StreamEnded() {
					t.Fatalf("call %d: the header block does not end the stream", stream/2)
				}
				break
			}
		}
	}
}

// A gRPC client reads grpc-status, not the status line.
func TestGRPCUnavailable(t *testing.T) {
	r := start(t, Settings{GRPC: true, Pool: pool(refused(t))})
	r.speakH2C(t)
	response, err := r.http.Post(r.url+"/s/Call", "application/grpc", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != 200 || response.Header.Get("Grpc-Status") != "14" {
		t.Errorf("got %d, grpc-status %q", response.StatusCode, response.Header.Get("Grpc-Status"))
	}
	if n := testutil.ToFloat64(r.retries.WithLabelValues("r")); n != 0 {
		t.Errorf("%v calls were given to another endpoint, and there is none", n)
	}
}

// A drain: the client is told by GOAWAY, so its next call goes elsewhere; the stream under way ends in its own time.
func TestGRPCDrain(t *testing.T) {
	begun, finish := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() { close(begun) }) // calls before the GOAWAY come here, too
	r := start(t, Settings{GRPC: true, Pool: pool(h2c(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		begin()
		<-finish
		_, _ = w.Write([]byte("done"))
	}))})
	r.speakH2C(t)
	response, err := r.http.Post(r.url, "application/grpc", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		// After the GOAWAY the client opens another connection, and nobody takes it.
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		request, _ := http.NewRequestWithContext(ctx, http.MethodHead, r.url+"/next", nil)
		second, err := r.http.Do(request)
		cancel()
		if second != nil {
			_ = second.Body.Close()
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("calls still go through the connection that was told to end")
		}
	}
	close(finish)
	if body, err := io.ReadAll(response.Body); string(body) != "done" || err != nil {
		t.Errorf("the stream under way got %q, %v", body, err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// An endpoint that dies in the midst of a stream: the client learns of it at once, though it says nothing itself.
func TestGRPCEndpointGone(t *testing.T) {
	begun := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-r.Context().Done()
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	var conns sync.Map
	server.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		conns.Store(conn, nil)
		return ctx
	}
	server.Start()
	defer server.Close()
	r := start(t, Settings{GRPC: true, Pool: pool(server.URL)})
	r.speakH2C(t)
	out, in := io.Pipe()
	defer in.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/s/Talk", out)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/grpc")
	response, err := r.http.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	<-begun
	conns.Range(func(conn, _ any) bool { return conn.(net.Conn).Close() == nil })
	if _, err := io.ReadAll(response.Body); err != nil || response.Trailer.Get("Grpc-Status") != "14" {
		t.Errorf("the client's stream ended with %v, trailers %v", err, response.Trailer)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if testutil.ToFloat64(r.failures.WithLabelValues("r", "torn")) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the torn stream is not counted")
		}
	}
}

// Calls that hang leave room for others, as many as there are: each agent's stream hangs until there is work.
func TestGRPCCallsThatHang(t *testing.T) {
	const calls = 1000
	var reached atomic.Int64
	r := start(t, Settings{GRPC: true, Pool: pool(h2c(t, func(_ http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		<-r.Context().Done()
	}))})
	r.speakH2C(t)
	ctx, cancel := context.WithCancel(t.Context())
	var calling sync.WaitGroup
	for range calls {
		calling.Go(func() {
			request, _ := http.NewRequestWithContext(ctx, http.MethodPost, r.url+"/s/Work", http.NoBody)
			request.Header.Set("Content-Type", "application/grpc")
			if response, err := r.http.Do(request); err == nil {
				t.Errorf("a call was answered: %s %s", response.Status, response.Header)
				_ = response.Body.Close()
			}
		})
	}
	testwait.Until(t, "all calls are at the endpoint", func() bool { return reached.Load() == calls })
	cancel()
	calling.Wait()
}
