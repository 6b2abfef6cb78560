package http1

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

// owner is an Owner, Route and Endpoint in one.
type owner struct {
	t         *testing.T
	engine    *Engine
	endpoint  netip.AddrPort
	upstreams *Upstreams
	file      func() File
	ended     chan Result
	left      chan []byte
	closed    atomic.Int64
	active    atomic.Int64 // requests at the endpoint
	mu        sync.Mutex
	sent      int

	// Of answers that did not come whole with their head.
	lasting int  // the endpoint's descriptor; 0 if there is none
	misused bool // the descriptor was closed before Streamed
}

func (o *owner) Route() Route                 { return o }
func (o *owner) Received(int)                 {}
func (o *owner) Progress()                    {}
func (o *owner) Retired() bool                { return false }
func (o *owner) Closed()                      { o.closed.Add(1) }
func (o *owner) Progressed(*Exchange, Result) {}

func (o *owner) HandOff(_ int, early []byte) { o.left <- early }

func (o *owner) Failed(_ *Exchange, _ bool, err error) *Refusal {
	o.active.Add(-1)
	return &Refusal{Code: 502, Text: err.Error()}
}

func (o *owner) Upstreams() *Upstreams { return o.upstreams }
func (o *owner) Succeeded()            {}
func (o *owner) Release()              { o.active.Add(-1) }

func (o *owner) Streaming(endpoint, _ int, _ int64) int {
	o.lasting = endpoint
	return Piece
}
func (o *owner) Streamed(bool) { o.lasting = 0 }

func (o *owner) Sent(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.sent += n
	if o.lasting > 0 {
		if _, err := unix.FcntlInt(uintptr(o.lasting), unix.F_GETFD, 0); err != nil {
			o.misused = true
		}
	}
}

func (o *owner) Begin(x *Exchange) bool {
	if o.file != nil {
		x.File = o.file()
		return true
	}
	o.active.Add(1)
	x.Endpoint, x.Key, x.Added = o, PerClient(o.endpoint, x.Client), []byte("X-Real-Ip: "+x.Client.String()+"\r\n")
	return true
}

func (o *owner) Ended(_ *Exchange, r Result) { o.ended <- r }

// newOwner runs an engine in a loop.
func newOwner(t *testing.T) *owner {
	t.Helper()
	g := loop.NewGroup(1)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	o := &owner{
		t: t, engine: New(g.Loops()[0]), ended: make(chan Result, 64), left: make(chan []byte, 64),
		upstreams: NewUpstreams(IdleLimits{Total: 8, PerKey: 4, Age: time.Minute}),
	}
	t.Cleanup(func() {
		o.engine.Wait()
		o.upstreams.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return o
}

// call calls f in the loop's thread, and waits.
func (o *owner) call(f func()) {
	done := make(chan struct{})
	o.engine.Soon(func() { defer close(done); f() })
	<-done
}

// dial connects a client to the engine; buffers bounds both sockets' buffers.
func (o *owner) dial(buffers int) net.Conn {
	o.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		o.t.Fatal(err)
	}
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { _ = client.Close() })
	_ = client.SetDeadline(time.Now().Add(30 * time.Second))
	accepted, err := listener.Accept()
	if err != nil {
		o.t.Fatal(err)
	}
	defer accepted.Close()
	raw, err := accepted.(*net.TCPConn).SyscallConn()
	if err != nil {
		o.t.Fatal(err)
	}
	var fd int
	if err := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		o.t.Fatal(err)
	}
	if buffers > 0 {
		_ = client.(*net.TCPConn).SetReadBuffer(buffers)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, buffers)
	}
	o.call(func() {
		c := o.engine.NewConn(fd, netip.MustParseAddr("127.0.0.1"))
		c.Add(o, Limits{})
		c.Read()
	})
	return client
}

const request = "GET /a HTTP/1.1\r\nHost: h\r\n\r\n"

// kept is how many idle connections to endpoints the engine has.
func (o *owner) kept() (n int) {
	o.call(func() {
		if o.engine.pool != nil {
			n = o.engine.pool.idle.all.Len()
		}
	})
	return n
}

func (o *owner) eventually(what string, is func() bool) {
	o.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			o.t.Fatalf("not so in time: %s", what)
		}
	}
}

// Connections to endpoints are kept for the next request, until they are idle for long, or the endpoint closes them or
// is to blame for something.
func TestUpstreamsAreKept(t *testing.T) {
	endpoint, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan net.Conn, 8)
	var serving sync.WaitGroup
	t.Cleanup(serving.Wait)
	t.Cleanup(func() { _ = endpoint.Close() })
	serving.Go(func() {
		for {
			conn, err := endpoint.Accept()
			if err != nil {
				return
			}
			conns <- conn
			serving.Go(func() {
				buffer := make([]byte, 1<<10)
				for {
					if n, err := conn.Read(buffer); err != nil || !bytes.Contains(buffer[:n], []byte("X-Real-Ip: 127.0.0.1\r\n")) {
						_ = conn.Close()
						return
					}
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			})
		}
	})
	o := newOwner(t)
	o.endpoint = netip.MustParseAddrPort(endpoint.Addr().String())
	client := o.dial(0)
	ask := func() {
		t.Helper()
		_, _ = io.WriteString(client, request)
		buffer := make([]byte, 1<<10)
		if n, err := client.Read(buffer); err != nil || !strings.HasSuffix(string(buffer[:n]), "\r\n\r\nok") {
			t.Fatalf("got %q, %v", buffer[:n], err)
		}
		if r := <-o.ended; r != (Result{Code: 200, Sent: 2, Expected: 2}) {
			t.Errorf("the route is told %+v", r)
		}
	}
	for range 3 {
		ask()
	}
	first := <-conns
	if n := o.kept(); n != 1 || len(conns) > 0 {
		t.Errorf("%d connections are kept, %d more were opened", n, len(conns))
	}
	o.call(func() { o.engine.pool.sweep(o.engine.loop.Now().Add(time.Minute - time.Second)) })
	if n := o.kept(); n != 1 {
		t.Error("the connection is given up early")
	}
	o.call(func() { o.engine.pool.sweep(o.engine.loop.Now().Add(time.Minute + time.Second)) })
	if n := o.kept(); n != 0 {
		t.Errorf("%d connections are kept for too long", n)
	}
	ask()
	_ = (<-conns).Close()
	o.eventually("a connection that the endpoint has closed is given up", func() bool { return o.kept() == 0 })
	ask()
	o.upstreams.Drop(o.endpoint)
	o.eventually("a connection to a bad endpoint is given up", func() bool { return o.kept() == 0 })
	if n := o.active.Load(); n != 0 {
		t.Errorf("the endpoint has %d requests", n)
	}
	_, _ = first, client.Close()
	o.eventually("the client's connection ends", func() bool { return o.closed.Load() == 1 })
}

// fakeFile is a file of which parts leave the memory.
type fakeFile struct {
	content string
	absent  func(offset int64) bool
	broken  error // of Load
	loads   atomic.Int64
	closed  atomic.Int64
	hold    chan struct{} // Load waits for it, unless nil
	waits   bool          // Load waits for its turn, which does not come
}

func (f *fakeFile) Size() int64 { return int64(len(f.content)) }

func (f *fakeFile) AppendHeader(b []byte) []byte {
	return fmt.Appendf(b, "200 OK\r\nContent-Length: %d\r\nContent-Type: a/b\r\n", f.Size())
}

func (f *fakeFile) InMemory(offset int64) (int64, error) {
	if f.absent != nil && f.absent(offset) {
		return 0, nil
	}
	return f.Size() - offset, nil
}

func (f *fakeFile) Send(socket int, offset, n int64) (int64, error) {
	sent, err := unix.Write(socket, []byte(f.content[offset:offset+n]))
	return int64(max(sent, 0)), err
}

func (f *fakeFile) Load(_ int64, stop <-chan struct{}) error {
	f.loads.Add(1)
	if f.waits {
		<-stop
		return os.ErrClosed
	}
	if f.hold != nil {
		<-f.hold
	}
	return f.broken
}

func (f *fakeFile) Close() { f.closed.Add(1) }

// A file reaches a client that takes it slowly, whatever part of it has left the memory meanwhile.
func TestFile(t *testing.T) {
	content := strings.Repeat("0123456789abcdef", 8<<10)
	for name, test := range map[string]struct {
		file   *fakeFile
		loaded bool
		torn   bool
	}{
		"in memory": {&fakeFile{content: content}, false, false},
		"in and out of memory": {&fakeFile{content: content, absent: func() func(int64) bool {
			var n atomic.Int64
			return func(at int64) bool { return at > 0 && n.Add(1)%2 == 1 }
		}()}, true, false},
		"unreadable": {&fakeFile{
			content: content, absent: func(at int64) bool { return at > 0 }, broken: errors.New("the disk is broken"),
		}, true, true},
		"empty": {&fakeFile{}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOwner(t)
			o.file = func() File { return test.file }
			client := o.dial(4 << 10)
			_, _ = io.WriteString(client, strings.Replace(request, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
			got, err := io.ReadAll(client)
			head, body, _ := strings.Cut(string(got), "\r\n\r\n")
			begin := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\nContent-Type: a/b\r\nDate: ", len(test.file.content))
			if !strings.HasPrefix(head, begin) || !strings.HasSuffix(head, "Connection: close") {
				t.Errorf("the head is %q, %v", head, err)
			}
			r, size := <-o.ended, test.file.Size()
			if r.Code != 200 || r.Expected != size || r.Gone || (r.Broken != nil) != test.torn || r.Sent != int64(len(body)) {
				t.Errorf("the route is told %+v for %d bytes of %d", r, len(body), size)
			}
			if !strings.HasPrefix(test.file.content, body) || !test.torn && int64(len(body)) != size {
				t.Errorf("got %d bytes of %d", len(body), size)
			}
			if n := test.file.closed.Load(); n != 1 {
				t.Errorf("the file was closed %d times", n)
			}
			if loaded := test.file.loads.Load() > 0; loaded != test.loaded {
				t.Errorf("loaded: %v, want %v", loaded, test.loaded)
			}
		})
	}
}

// A connection is closed while its file is loaded: the engine closes the file once, behind Load.
func TestFileOfAClientThatGoes(t *testing.T) {
	file := &fakeFile{content: request, absent: func(int64) bool { return true }, hold: make(chan struct{})}
	o := newOwner(t)
	o.file = func() File { return file }
	client := o.dial(0)
	_, _ = io.WriteString(client, request)
	o.eventually("the file is loaded", func() bool { return file.loads.Load() == 1 })
	o.call(func() { o.engine.conns[0].close() })
	if n := file.closed.Load(); n != 0 {
		t.Error("the file was closed while it was read")
	}
	close(file.hold)
	if r := <-o.ended; !r.Gone || r.Sent != 0 || r.Expected != file.Size() {
		t.Errorf("the route is told %+v", r)
	}
	o.eventually("the file is closed", func() bool { return file.closed.Load() == 1 })
}

// A connection is closed while its file waits to be loaded, as for a disk that hangs: the file is closed at once.
func TestFileThatWaitsIsGivenUp(t *testing.T) {
	file := &fakeFile{content: request, absent: func(int64) bool { return true }, waits: true}
	o := newOwner(t)
	o.file = func() File { return file }
	client := o.dial(0)
	_, _ = io.WriteString(client, request)
	o.eventually("the file waits", func() bool { return file.loads.Load() == 1 })
	o.call(func() { o.engine.conns[0].Abort() })
	if r := <-o.ended; !r.Gone || r.Broken != nil || r.Sent != 0 {
		t.Errorf("the route is told %+v", r)
	}
	o.eventually("the file is closed", func() bool { return file.closed.Load() == 1 })
}

// A client that sends one request after the other without a pause has the loop for some of them only: whatever else the
// loop has to do is done in between, and no request is served deeper in the stack than the one before.
func TestPipelineLetsOthersHaveTheirTurn(t *testing.T) {
	var most, served int
	o := newOwner(t)
	in := 0 // requests since the loop did something else
	o.file = func() File {
		served, in = served+1, in+1
		most = max(most, in)
		return &fakeFile{}
	}
	padded := strings.Replace(request, "\r\n\r\n", "\r\nX: ", 1)
	padded += strings.Repeat("x", mostRequest-len(padded)-4) + "\r\n\r\n" // so that each read gets exactly one
	client := o.dial(0)
	o.call(func() {
		_ = unix.SetsockoptInt(o.engine.conns[0].client.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	})
	const requests = 3 * requestsAtOnce
	come := make(chan struct{})
	o.engine.Soon(func() { <-come }) // until all requests lie in the socket
	_, _ = io.WriteString(client, strings.Repeat(padded, requests))
	raw, err := client.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	o.eventually("all requests have come", func() (all bool) {
		_ = raw.Control(func(fd uintptr) {
			left, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
			all = err == nil && left == 0
		})
		return all
	})
	go func() {
		for range requests {
			<-o.ended
		}
	}()
	var other func()
	other = func() {
		if in = 0; served < requests {
			o.engine.loop.Do(other)
		}
	}
	o.engine.Soon(other)
	close(come)
	reader := bufio.NewReader(client)
	for i := range requests {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatalf("%d answers, %v", i, err)
		}
		_ = response.Body.Close()
	}
	o.call(func() {
		if want := 2 * requestsAtOnce; most > want { // an event's, and those of its turn behind the same events
			t.Errorf("%d requests were served one after the other, want %d at most", most, want)
		}
	})
	_ = client.Close()
}

// A request that is sent again after a reload, to an endpoint of the route before, does not take the place of the share
// that is in use: that is still swept.
func TestPoolInUseIsKept(t *testing.T) {
	o := newOwner(t)
	before, now := NewUpstreams(IdleLimits{Total: 1, PerKey: 1}), o.upstreams
	defer before.Close()
	o.call(func() {
		first := o.engine.poolOf(before)
		if o.engine.poolOf(now); o.engine.poolOf(before) != first {
			t.Error("a pool of the route before is made twice")
		}
	})
	before.Close()
	o.call(func() {
		in := o.engine.poolOf(now)
		o.engine.poolOf(before)
		if o.engine.pool != in || o.engine.poolOf(now) != in || len(now.pools) != 1 {
			t.Errorf("the pool in use was replaced; there are %d", len(now.pools))
		}
	})
}

// An owner may set the endpoint's socket as an answer gets on. When the last of it is sent, the endpoint's connection
// may be closed, and its descriptor another's: the owner is told before.
func TestOwnerForgetsClosedEndpoint(t *testing.T) {
	body := strings.Repeat("x", 1<<20)
	endpoint, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	defer serving.Wait()
	defer endpoint.Close()
	serving.Go(func() {
		conn, err := endpoint.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Read(make([]byte, 1<<10))
		_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	})
	o := newOwner(t)
	o.endpoint = netip.MustParseAddrPort(endpoint.Addr().String())
	client := o.dial(0)
	_, _ = io.WriteString(client, strings.Replace(request, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
	if got, err := io.ReadAll(client); err != nil || !strings.HasSuffix(string(got), body) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	<-o.ended
	o.call(func() {
		if o.misused {
			t.Error("the owner had a descriptor that was closed")
		}
	})
}
