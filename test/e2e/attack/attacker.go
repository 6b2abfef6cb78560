// Package attack holds stack-proxy, with the chart's own limits, under the slow attacks that end a server by its
// memory, while a machine boots through it.
package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Attack is something that a client can do on a connection to hold what it costs.
type Attack struct {
	Name string
	port int
	// do is told the connection's number. It returns when there is nothing more to be done; the connection is then held.
	do func(conn net.Conn, n int) error
}

const (
	// longHeader is what of a header is sent, in bytes; it does not end.
	longHeader = 60_000
	// streams are opened on each connection of HTTP/2.
	streams = 50
)

// Attacks are all of them.
func Attacks() []Attack {
	return []Attack{
		{"unfinished headers", portHTTP, text("GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", longHeader))},
		{"bodies of one byte", portHTTP, text("POST /sink HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\nx")},
		{"idle", portHTTP, text("")},
		{"idle after a request", portHTTP, text("GET /meta HTTP/1.1\r\nHost: x\r\n\r\n")},
		{"slow readers of a backend", portHTTP, text("GET /large HTTP/1.1\r\nHost: x\r\n\r\n")},
		{"slow readers of files", portFiles, text("GET /large HTTP/1.1\r\nHost: x\r\n\r\n")},
		{"handshakes", portTLS, handshake},
		{"slow readers by TLS", portTLS, slowTLS},
		{"HTTP/2 headers", portGRPC, continuation},
		{"HTTP/2 streams", portGRPC, manyStreams},
		{"tcp", portTCP, text("")},
		{"slow readers by tcp", portTCP, text("large\n")},
	}
}

func text(s string) func(net.Conn, int) error {
	return func(c net.Conn, _ int) error {
		_, err := io.WriteString(c, s)
		return err
	}
}

// handshake stops every other handshake in the midst of its first message, and is idle after the others.
func handshake(c net.Conn, n int) error {
	if n%2 == 0 {
		_, err := c.Write([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3})
		return err
	}
	return tls.Client(c, insecure).Handshake()
}

var insecure = &tls.Config{InsecureSkipVerify: true}

func slowTLS(c net.Conn, n int) error {
	secure := tls.Client(c, insecure)
	if err := secure.Handshake(); err != nil {
		return err
	}
	return text("GET /large HTTP/1.1\r\nHost: x\r\n\r\n")(secure, n)
}

// headerBlock is a request's, with a field of some length.
func headerBlock(method string, length int) []byte {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", method}, {":scheme", "http"}, {":path", "/echo.Echo/Call"}, {":authority", "x"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {"x", strings.Repeat("a", length)},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})
	}
	return block.Bytes()
}

func begin(c net.Conn) (*http2.Framer, *bytes.Buffer) {
	var out bytes.Buffer
	out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(&out, c)
	_ = framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30})
	return framer, &out
}

// continuation sends a header that does not end in HTTP/2: one stream that waits for its body, and one whose header
// does not end.
func continuation(c net.Conn, _ int) error {
	framer, out := begin(c)
	_ = framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: headerBlock("POST", 8000), EndHeaders: true,
	})
	block := headerBlock("POST", longHeader/2)
	_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block[:16000]})
	for rest := block[16000:]; len(rest) > 1000; rest = rest[1000:] {
		_ = framer.WriteContinuation(3, false, rest[:1000])
	}
	_, err := c.Write(out.Bytes())
	return err
}

// manyStreams opens streams whose bodies begin and do not end.
func manyStreams(c net.Conn, _ int) error {
	framer, out := begin(c)
	for i := range streams {
		id := uint32(2*i + 1)
		_ = framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: id, BlockFragment: headerBlock("POST", 100), EndHeaders: true,
		})
		_ = framer.WriteData(id, false, []byte{0, 0, 0, 0, 100, 1})
	}
	_, err := c.Write(out.Bytes())
	return err
}

// again is how long an attacker waits with a connection that was lost.
const again = 5 * time.Second

// Sources is how many addresses the connections come from.
const Sources = 64

func source(n int) net.IP { return net.IPv4(127, 1, 0, byte(1+n%Sources)) }

// Run holds some connections of an attack from a number on, and opens them again when they are lost or refused,
// until ctx is done. It calls full when it has tried each once, and tells how many it opened, how often it was
// refused (a connection was reset before the attack's first words were through), and how many it held at most.
func (a Attack) Run(ctx context.Context, from, connections int, full func()) string {
	var opened, refused, held, most, first atomic.Int64
	var group sync.WaitGroup
	dialing := make(chan struct{}, 128)
	for i := range connections {
		group.Go(func() {
			n, once := from+i, sync.OnceFunc(func() {
				if first.Add(1) == int64(connections) {
					full()
				}
			})
			for ctx.Err() == nil {
				dialing <- struct{}{}
				c, err := a.open(ctx, n)
				<-dialing
				once()
				if err != nil {
					refused.Add(1)
				} else {
					opened.Add(1)
					for now := held.Add(1); ; {
						if before := most.Load(); now <= before || most.CompareAndSwap(before, now) {
							break
						}
					}
					hold(ctx, c)
					held.Add(-1)
				}
				select {
				case <-ctx.Done():
				case <-time.After(again):
				}
			}
		})
	}
	group.Wait()
	return fmt.Sprintf("opened %d, refused %d, held %d", opened.Load(), refused.Load(), most.Load())
}

func (a Attack) open(ctx context.Context, n int) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: source(n)}, Timeout: 10 * time.Second, Control: narrow}
	c, err := dialer.DialContext(ctx, "tcp", address(a.port))
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if err := a.do(c, n); err != nil {
		_ = c.Close()
		return nil, err
	}
	_ = c.SetDeadline(time.Time{})
	return c, nil
}

// narrow keeps the attacker's own memory small: it reads nothing.
func narrow(_, _ string, raw syscall.RawConn) (err error) {
	failure := raw.Control(func(fd uintptr) {
		err = errors.Join(syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096),
			syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, 24 /* IP_BIND_ADDRESS_NO_PORT */, 1))
	})
	return errors.Join(err, failure)
}

// hold keeps a connection until the other end closes it. It reads nothing: that an end has come is asked for.
func hold(ctx context.Context, c net.Conn) {
	defer c.Close()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return
	}
	for ctx.Err() == nil {
		gone := false
		err := raw.Control(func(fd uintptr) {
			info, err := syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO)
			gone = err != nil || info&0xff != 1 // not established
		})
		if gone || err != nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// Part is what an attacker's process is told by its environment.
const Part = "STACK_ATTACK"

// RunPart is the attacker's process: it attacks as its environment says until its input ends, and says how it went.
func RunPart(setting string) error {
	var attack, from, connections int
	if _, err := fmt.Sscanf(setting, "%d %d %d", &attack, &from, &connections); err != nil {
		return fmt.Errorf("failed to read %s=%q: %w", Part, setting, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	fmt.Println(Attacks()[attack].Run(ctx, from, connections, func() { fmt.Println(tried) }))
	return nil
}

// tried is what an attacker's process says when it has tried each of its connections.
const tried = "tried all"

func setting(attack, from, connections int) string {
	return Part + "=" + strconv.Itoa(attack) + " " + strconv.Itoa(from) + " " + strconv.Itoa(connections)
}
