package failover

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lookInterval is the time between two echo requests, and two connections.
	lookInterval = 10 * time.Millisecond
	// patience is when a connection counts as failed. It is shorter than the time after which a SYN is sent again, so
	// that one that was lost is seen; and long, since a busy machine is slow.
	patience = 900 * time.Millisecond
)

// Look is what a client sees of the address: echo requests and HTTP on a new connection, each every 10 ms.
type Look struct {
	ping    int // socket
	working sync.WaitGroup
	end     context.CancelFunc

	mu       sync.Mutex
	sent     map[uint16]time.Time
	answered []time.Time // when echo requests were sent that were answered
	fetched  []attempt
}

// attempt is a connection, and the HTTP request on it.
type attempt struct {
	at                time.Time
	connected, served bool
}

func newLook(h *host) (*Look, error) {
	ctx, end := context.WithCancel(context.Background())
	l := &Look{end: end, sent: map[uint16]time.Time{}, ping: -1}
	err := h.in(func() (err error) {
		if l.ping, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP); err != nil {
			return fmt.Errorf("failed to open ICMP socket: %w", err)
		}
		return unix.SetsockoptTimeval(l.ping, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000})
	})
	if err != nil {
		end()
		if l.ping >= 0 {
			_ = unix.Close(l.ping)
		}
		return nil, err
	}
	l.working.Go(func() { l.sendPings(ctx) })
	l.working.Go(func() { l.readPings(ctx) })
	l.working.Go(func() { _ = h.in(func() error { l.connect(ctx); return nil }) })
	return l, nil
}

func (l *Look) stop() {
	if l == nil {
		return
	}
	l.end()
	l.working.Wait()
	_ = unix.Close(l.ping)
}

// each calls f in each interval until ctx is done.
func each(ctx context.Context, interval time.Duration, f func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f()
		}
	}
}

func (l *Look) sendPings(ctx context.Context) {
	to := &unix.SockaddrInet4{Addr: netip.MustParseAddr(VIP).As4()}
	var n uint16
	each(ctx, lookInterval, func() {
		n++
		b := []byte{8, 0, 0, 0, 0x1b, 0x1b, byte(n >> 8), byte(n)}
		var sum uint32
		for i := 0; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		binary.BigEndian.PutUint16(b[2:], ^uint16(sum+sum>>16))
		l.mu.Lock()
		l.sent[n] = time.Now()
		l.mu.Unlock()
		_ = unix.Sendto(l.ping, b, unix.MSG_DONTWAIT, to) // lost requests are what is measured
	})
}

func (l *Look) readPings(ctx context.Context) {
	b := make([]byte, 256)
	for ctx.Err() == nil {
		n, _, err := unix.Recvfrom(l.ping, b, 0)
		if err != nil || n < 28 || b[20] != 0 || b[24] != 0x1b {
			continue
		}
		l.mu.Lock()
		seq := binary.BigEndian.Uint16(b[26:])
		if at, ok := l.sent[seq]; ok {
			l.answered = append(l.answered, at)
			delete(l.sent, seq)
		}
		l.mu.Unlock()
	}
}

// connect opens connections. Its thread is in the client's namespace.
func (l *Look) connect(ctx context.Context) {
	to := &unix.SockaddrInet4{Port: 80, Addr: netip.MustParseAddr(VIP).As4()}
	var working sync.WaitGroup
	defer working.Wait()
	each(ctx, lookInterval, func() {
		at := time.Now()
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, to)
		}
		conn := os.NewFile(uintptr(fd), "connection")
		working.Go(func() {
			defer conn.Close()
			one := attempt{at: at}
			if err == nil || errors.Is(err, unix.EINPROGRESS) {
				one.connected, one.served = request(conn, at.Add(patience))
			}
			if ctx.Err() == nil {
				l.mu.Lock()
				l.fetched = append(l.fetched, one)
				l.mu.Unlock()
			}
		})
	})
}

// request sends an HTTP request as soon as the connection is there, and reads the answer.
func request(conn *os.File, deadline time.Time) (connected, served bool) {
	if err := conn.SetDeadline(deadline); err != nil {
		return false, false
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return false, false
	}
	answer, err := io.ReadAll(conn)
	return true, err == nil && bytes.HasPrefix(answer, []byte("HTTP/1.0 200"))
}

// Seen is what the client saw in some time.
type Seen struct {
	// Echo and HTTP are the longest times without an answer, in seconds.
	Echo float64 `json:"echo_outage_s"`
	HTTP float64 `json:"http_outage_s"`
	// Lost are connections that were not established, and Broken are those that were, and whose request got no answer,
	// among all Connections.
	Lost        int `json:"connects_lost"`
	Broken      int `json:"requests_broken"`
	Connections int `json:"connections"`
}

// Since is what the client has seen from then until now. The longest time without an answer is that between two
// requests that were answered, or the time and the first or last of them.
func (l *Look) Since(from time.Time) Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s := Seen{Echo: longest(from, now, l.answered)}
	var served []time.Time
	for _, a := range l.fetched {
		if a.at.Before(from) {
			continue
		}
		s.Connections++
		switch {
		case a.served:
			served = append(served, a.at)
		case a.connected:
			s.Broken++
		default:
			s.Lost++
		}
	}
	s.HTTP = longest(from, now, served)
	return s
}

// forget drops what was seen before a time.
func (l *Look) forget(before time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered = slices.DeleteFunc(l.answered, func(at time.Time) bool { return at.Before(before) })
	l.fetched = slices.DeleteFunc(l.fetched, func(a attempt) bool { return a.at.Before(before) })
}

// answers tells whether the address has answered since then without a break, but for those of a busy machine.
func (l *Look) answers(from time.Time) bool {
	s := l.Since(from)
	return s.Echo < 0.3 && s.HTTP < 0.3
}

func longest(from, to time.Time, times []time.Time) float64 {
	sorted := slices.Clone(times)
	slices.SortFunc(sorted, time.Time.Compare)
	last, most := from, time.Duration(0)
	for _, at := range append(sorted, to) {
		if at.Before(from) {
			continue
		}
		most = max(most, at.Sub(last))
		last = at
	}
	return max(0, (most - 2*lookInterval)).Seconds()
}
