package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
)

// visit is what a client does on one connection: it asks, one after the other, and the last request says that the
// connection ends behind its answer, as the requests of firmware do.
type visit struct {
	requests []string
	from     netip.Addr // invalid is any
	files    bool       // asks the port that serves files
}

const (
	head    = " HTTP/1.1\r\nHost: bench\r\nUser-Agent: iPXE/1.21.1\r\n"
	getKept = "GET /auto.ipxe" + head + "\r\n"
	closing = "Connection: close\r\n"
	getLast = "GET /auto.ipxe" + head + closing + "\r\n"
	get10   = "GET /auto.ipxe HTTP/1.0\r\nHost: bench\r\nConnection: keep-alive\r\n\r\n"
	getFile = "GET /" + fileName + head + closing + "\r\n"
)

// post has a body of 200 bytes.
var post = "POST /auto.ipxe" + head + closing + "Content-Length: 200\r\n\r\n" + strings.Repeat("x", 200)

func gets(n int) []string { return append(repeat(getKept, n-1), getLast) }

func repeat(request string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = request
	}
	return all
}

// asking is always the same visit.
func asking(v visit) func(int) visit { return func(int) visit { return v } }

// machines are visits of so many addresses, one after another, with one to three requests each.
func machines(n int) func(i int) visit {
	all := make([]visit, n)
	for i := range all {
		all[i] = visit{requests: gets(1 + i%3), from: machine(i)}
	}
	return func(i int) visit { return all[i%n] }
}

// machine is the address of a client.
func machine(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{127, 1, byte(i / 250), byte(1 + i%250)})
}

// visitors are how many connections there are at a time.
const visitors = 32

// measureVisits has visitors make one visit after the other. The client is ours and costs more than wrk would, so that
// the rates are lower than they could be; the processor time is the candidate's own.
func measureVisits(ctx context.Context, b *bench, c *candidate, next func(i int) visit) (rounds.Sample, error) {
	// A candidate is started when it takes connections on its first port, so the first visit may have to wait.
	for deadline := time.Now().Add(10 * time.Second); ; {
		first := next(0)
		_, err := first.make(ctx, c.address(first), make([]byte, fileSize))
		if err == nil {
			break
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return nil, fmt.Errorf("failed to make a first visit: %w", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	var count, requests, failed atomic.Int64
	var why atomic.Pointer[error]
	used, begun := c.CPU(), time.Now()
	end := begun.Add(b.Duration)
	var all sync.WaitGroup
	for range visitors {
		all.Go(func() {
			buffer := make([]byte, fileSize)
			for ctx.Err() == nil && time.Now().Before(end) {
				v := next(int(count.Add(1)))
				n, err := v.make(ctx, c.address(v), buffer)
				requests.Add(int64(n))
				if err != nil {
					failed.Add(1)
					why.Store(&err)
				}
			}
		})
	}
	all.Wait()
	took, cpu, n := time.Since(begun).Seconds(), c.CPU()-used, float64(requests.Load())
	if failed.Load() > count.Load()/1000 {
		return nil, fmt.Errorf("%d of %d connections failed: %w", failed.Load(), count.Load(), *why.Load())
	}
	return rounds.Sample{
		"cpu_us_per_request": cpu / n * 1e6, "req_per_s": n / took, "conns_per_s": float64(count.Load()) / took,
	}, ctx.Err()
}

// address is where a visit goes.
func (c *candidate) address(v visit) string {
	if v.files {
		return filesAddr
	}
	return c.http
}

// dialer connects from an address, which shares ports with the other addresses.
func dialer(from netip.Addr) *net.Dialer {
	d := &net.Dialer{Timeout: 10 * time.Second}
	d.SetMultipathTCP(false)
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
		d.Control = func(_, _ string, raw syscall.RawConn) error {
			var err error
			return errors.Join(raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
			}), err)
		}
	}
	return d
}

// make makes the visit, and tells how many requests were answered.
func (v visit) make(ctx context.Context, addr string, buffer []byte) (answered int, err error) {
	conn, err := dialer(v.from).DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	for _, request := range v.requests {
		if _, err := io.WriteString(conn, request); err != nil {
			return answered, err
		}
		if code, _, err := readAnswer(conn, buffer); err != nil {
			return answered, err
		} else if code != 200 {
			return answered, fmt.Errorf("got code %d", code)
		}
		answered++
	}
	if strings.Contains(v.requests[len(v.requests)-1], closing) {
		if n, err := conn.Read(buffer); !errors.Is(err, io.EOF) {
			return answered, fmt.Errorf("read %d bytes, %w behind the last answer, want its end", n, err)
		}
	}
	return answered, nil
}

// readAnswer reads one answer with a length. The body is what of it fits behind the head into the buffer.
func readAnswer(r io.Reader, buffer []byte) (code int, body []byte, err error) {
	have, end := 0, -1
	for end < 0 {
		n, err := r.Read(buffer[have:])
		if have += n; err != nil {
			return 0, nil, fmt.Errorf("failed to read an answer's head behind %q: %w", buffer[:have], err)
		}
		end = bytes.Index(buffer[:have], []byte("\r\n\r\n"))
	}
	length := -1
	for line := range bytes.Lines(buffer[:end+2]) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return 0, nil, err
			}
		}
	}
	var minor int
	if _, err := fmt.Sscanf(string(buffer[:end]), "HTTP/1.%d %d ", &minor, &code); err != nil || length < 0 {
		return 0, nil, fmt.Errorf("got %q", buffer[:have])
	}
	from := end + 4
	if have-from > length {
		return 0, nil, fmt.Errorf("got %d bytes more than the answer", have-from-length)
	}
	for left := length - (have - from); left > 0; {
		if have == len(buffer) {
			have = from // the rest of a long body is not looked at
		}
		n, err := r.Read(buffer[have:min(len(buffer), have+left)])
		if err != nil {
			return 0, nil, fmt.Errorf("failed to read an answer's body: %w", err)
		}
		have += n
		left -= n
	}
	return code, buffer[from:min(len(buffer), from+length)], nil
}
