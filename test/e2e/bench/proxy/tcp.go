package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
)

// measureBulk downloads over two connections for the time of a measurement. The client does not look at the bytes.
func measureBulk(ctx context.Context, b *bench, c *candidate) (rounds.Sample, error) {
	var total atomic.Int64
	begun, used := time.Now(), c.CPU()
	var clients sync.WaitGroup
	failures := make(chan error, 2)
	for range 2 {
		conn, err := net.Dial("tcp", c.tcp)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("g")); err != nil {
			return nil, err
		}
		_ = conn.SetDeadline(begun.Add(b.Duration))
		clients.Go(func() {
			if err := discard(conn.(*net.TCPConn), &total); !errors.Is(err, os.ErrDeadlineExceeded) {
				failures <- err
			}
		})
	}
	clients.Wait()
	select {
	case err := <-failures:
		return nil, fmt.Errorf("download ended early: %w", err)
	default:
	}
	took, cpu := time.Since(begun).Seconds(), c.CPU()-used
	gib := float64(total.Load()) / (1 << 30)
	return rounds.Sample{"cpu_s_per_gib": cpu / gib, "gbit_per_s": float64(total.Load()) * 8 / 1e9 / took}, ctx.Err()
}

// discard has the kernel throw away what arrives (MSG_TRUNC), so that the client's copies do not fill the machine.
func discard(conn *net.TCPConn, total *atomic.Int64) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	buffer := make([]byte, 1<<20)
	for {
		n := 0
		var failure error
		err := raw.Read(func(fd uintptr) bool {
			n, _, failure = unix.Recvfrom(int(fd), buffer, unix.MSG_TRUNC)
			return !errors.Is(failure, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return err
		case failure != nil:
			return failure
		case n == 0:
			return errors.New("end of stream")
		}
		total.Add(int64(n))
	}
}

// measureConnect opens short connections: a byte there, a byte back, the end.
func measureConnect(ctx context.Context, b *bench, c *candidate) (rounds.Sample, error) {
	var done, failed atomic.Int64
	begun, used := time.Now(), c.CPU()
	end := begun.Add(b.Duration)
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			one := make([]byte, 1)
			for time.Now().Before(end) && ctx.Err() == nil {
				conn, err := net.Dial("tcp", c.tcp)
				if err != nil {
					failed.Add(1)
					continue
				}
				_, _ = conn.Write([]byte("s"))
				if _, err := conn.Read(one); err != nil {
					failed.Add(1)
				} else {
					done.Add(1)
				}
				// A reset leaves no TIME_WAIT, or a run would find no free port.
				_ = conn.(*net.TCPConn).SetLinger(0)
				_ = conn.Close()
			}
		})
	}
	clients.Wait()
	took, cpu := time.Since(begun).Seconds(), c.CPU()-used
	n := float64(done.Load())
	if failed.Load() > done.Load()/100 {
		return nil, fmt.Errorf("%d of %d connections failed", failed.Load(), done.Load()+failed.Load())
	}
	s := rounds.Sample{"conns_per_s": n / took}
	if c.Process != nil {
		s["cpu_us_per_conn"] = cpu / n * 1e6
	}
	return s, ctx.Err()
}

// idleConnections is how many connections measureIdle holds: ten thousand, or what the limit on descriptors allows
// to a process that has both ends of each.
func idleConnections() int {
	return min(10000, (descriptors()-1000)/2)
}

// descriptors raises the limit on descriptors as far as it goes, for this process and its children, and tells it.
func descriptors() int {
	const wanted = 65536
	if unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: wanted, Max: wanted}) == nil {
		return wanted
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	limit.Cur = limit.Max
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	return int(min(limit.Cur, wanted))
}

// measureIdle opens connections that have said one byte each way, as an idle gRPC stream has, and weighs them. The
// kernel's share is the machine's, so it holds the client's and the backend's sockets too.
func measureIdle(ctx context.Context, b *bench, c *candidate) (rounds.Sample, error) {
	count := idleConnections()
	// One connection first, so that what is allocated once does not count.
	warm, err := idle(c, 0)
	if err != nil {
		return nil, err
	}
	defer warm.Close()
	time.Sleep(500 * time.Millisecond)
	rss, kernel := c.Memory(), kernelKiB()
	conns := make([]net.Conn, 0, count)
	defer func() {
		for _, conn := range conns {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}()
	for i := range count {
		conn, err := idle(c, i)
		if err != nil {
			return nil, fmt.Errorf("connection %d: %w", len(conns), err)
		}
		conns = append(conns, conn)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(2 * time.Second):
	}
	return rounds.Sample{
		"kib_per_conn":        (c.Memory() - rss) / float64(count),
		"connections":         float64(count),
		"kernel_kib_per_conn": (kernelKiB() - kernel) / float64(count),
	}, nil
}

// idle opens the i-th connection: they come from 64 addresses, since no client may have all there is room for.
func idle(c *candidate, i int) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 1, 0, byte(1+i%64))}}
	conn, err := dialer.Dial("tcp", c.tcp)
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write([]byte("i")); err != nil {
		return nil, err
	}
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		return nil, err
	}
	return conn, nil
}

// kernelKiB is the kernel's memory that connections can be held responsible for.
func kernelKiB() float64 {
	text, _ := os.ReadFile("/proc/meminfo")
	total := 0.0
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 1 && (fields[0] == "Slab:" || fields[0] == "PageTables:") {
			kib, _ := strconv.ParseFloat(fields[1], 64)
			total += kib
		}
	}
	return total
}
