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

	mu      sync.Mutex
	dropped int // echo requests that were forgotten
	echoes  []attempt
	fetched []attempt
}

// attempt is a connection, and the HTTP request on it; or an echo request, which is served or not.
type attempt struct {
	at                time.Time
	connected, served bool
}

func newLook(h *host) (*Look, error) {
	ctx, end := context.WithCancel(context.Background())
	l := &Look{end: end, ping: -1}
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
	each(ctx, lookInterval, func() {
		l.mu.Lock()
		n := uint16(l.dropped + len(l.echoes))
		l.echoes = append(l.echoes, attempt{at: time.Now()})
		l.mu.Unlock()
		b := []byte{8, 0, 0, 0, 0x1b, 0x1b, byte(n >> 8), byte(n)}
		var sum uint32
		for i := 0; i < len(b); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		binary.BigEndian.PutUint16(b[2:], ^uint16(sum+sum>>16))
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
		last := len(l.echoes) - 1
		if i := last - int(uint16(l.dropped+last)-binary.BigEndian.Uint16(b[26:])); i >= 0 {
			l.echoes[i].served = true
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
	// Echo and HTTP are the longest times in which no request was answered, in seconds: from the first request without an
	// answer to the next one with an answer. A client that has not come to ask has seen no outage.
	Echo float64 `json:"echo_outage_s"`
	HTTP float64 `json:"http_outage_s"`
	// Lost are connections that were not established, and Broken are those that were, and whose request got no answer,
	// among all Connections.
	Lost        int `json:"connects_lost"`
	Broken      int `json:"requests_broken"`
	Connections int `json:"connections"`
}

// Since is what the client has seen from then until now.
func (l *Look) Since(from time.Time) Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	s := Seen{Echo: longest(from, now, l.echoes), HTTP: longest(from, now, l.fetched)}
	for _, a := range l.fetched {
		if a.at.Before(from) {
			continue
		}
		s.Connections++
		switch {
		case a.served:
		case a.connected:
			s.Broken++
		default:
			s.Lost++
		}
	}
	return s
}

// forget drops what was seen before a time.
func (l *Look) forget(before time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := slices.IndexFunc(l.echoes, func(a attempt) bool { return !a.at.Before(before) })
	if old > 0 {
		l.dropped += old
		l.echoes = slices.Delete(l.echoes, 0, old)
	}
	l.fetched = slices.DeleteFunc(l.fetched, func(a attempt) bool { return a.at.Before(before) })
}

// answers tells whether the address has answered since then without a break, but for those of a busy machine; echo
// requests, too, where they count.
func (l *Look) answers(from time.Time, echo bool) bool {
	s := l.Since(from)
	return s.HTTP < 0.3 && (!echo || s.Echo < 0.3)
}

// underWay is how long an echo request may be until it counts as one without an answer.
const underWay = 50 * time.Millisecond

// longest is the longest time in which no attempt was served, in seconds.
func longest(from, to time.Time, attempts []attempt) float64 {
	sorted := slices.Clone(attempts)
	slices.SortFunc(sorted, func(a, b attempt) int { return a.at.Compare(b.at) })
	var most time.Duration
	var first time.Time // without an answer, since the last one with an answer
	for _, a := range sorted {
		switch {
		case a.at.Before(from) || !a.served && to.Sub(a.at) < underWay:
		case a.served && !first.IsZero():
			most = max(most, a.at.Sub(first))
			first = time.Time{}
		case !a.served && first.IsZero():
			first = a.at
		}
	}
	if !first.IsZero() {
		most = max(most, to.Sub(first))
	}
	return most.Seconds()
}
