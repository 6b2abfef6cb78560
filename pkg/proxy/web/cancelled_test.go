package web

import (
	"bytes"
	"cmp"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// A call that the backend resets with CANCEL is cancelled, or its time is over: its client is not told that the backend
// was unavailable, and the backend is not blamed for it.
func TestCallThatTheBackendCancels(t *testing.T) {
	for name, test := range map[string]struct {
		head  bool // the backend sends one before
		limit string
		want  string
	}{
		"at once":                  {false, "", "1"},
		"behind the head":          {true, "", "1"},
		"in time":                  {true, "1H", "1"},
		"when its time was over":   {false, "20m", "4"},
		"when time for more is up": {true, "20m", "4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := pool(cancelling(t, test.head))
			r := start(t, Settings{GRPC: true, Pool: p})
			r.speakH2C(t)
			request, _ := http.NewRequest(http.MethodPost, r.url+"/s/Call", strings.NewReader("call"))
			request.Header.Set("Content-Type", "application/grpc")
			if test.limit != "" {
				request.Header.Set("Grpc-Timeout", test.limit)
			}
			response, err := r.http.Do(request)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			if got := cmp.Or(response.Trailer.Get(headerStatus), response.Header.Get(headerStatus)); got != test.want {
				t.Errorf("the call ends with %q, want %q", got, test.want)
			}
			if s := p.Status()[0]; s.Active != 0 || s.Failures != 0 {
				t.Errorf("the backend has %d calls and %d failures", s.Active, s.Failures)
			}
		})
	}
}

// cancelling is a backend of HTTP/2 that resets each stream, 50 ms after its head.
func cancelling(t *testing.T, head bool) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	serving.Go(func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.ReadFull(conn, make([]byte, len(http2.ClientPreface)))
		framer := http2.NewFramer(conn, conn)
		_ = framer.WriteSettings()
		for {
			frame, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if asked, ok := frame.(*http2.HeadersFrame); ok {
				id := asked.StreamID
				if head {
					var block bytes.Buffer
					encoder := hpack.NewEncoder(&block)
					_ = encoder.WriteField(hpack.HeaderField{Name: ":status", Value: "200"})
					_ = encoder.WriteField(hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
					_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true})
				}
				time.Sleep(50 * time.Millisecond)
				_ = framer.WriteRSTStream(id, http2.ErrCodeCancel)
			}
		}
	})
	return listener.Addr().String()
}
