package failover

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// How often the client looks.
const (
	pingInterval = 10 * time.Millisecond
	arpInterval  = 100 * time.Millisecond
	// httpTimeout is when a connection counts as failed.
	httpTimeout = 200 * time.Millisecond
)

// Look is what the client sees of the address: echo requests and HTTP every 10 ms, and whose Ethernet addresses answer
// an ARP probe every 100 ms. It is a judge of its own: none of its code is stack-lb's.
type Look struct {
	host      *host
	ping, arp int // sockets
	mac       [6]byte
	working   sync.WaitGroup
	end       context.CancelFunc

	mu       sync.Mutex
	answered []time.Time // when echo requests were sent that were answered
	sent     map[uint16]time.Time
	fetched  []attempt
	rounds   []round
}

// attempt is an HTTP request.
type attempt struct {
	at time.Time
	ok bool
}

// round is an ARP probe and who answered it.
type round struct {
	at     time.Time
	owners [][6]byte
}

func newLook(h *host) (*Look, error) {
	ctx, end := context.WithCancel(context.Background())
	l := &Look{host: h, end: end, sent: map[uint16]time.Time{}, ping: -1, arp: -1}
	err := h.in(func() (err error) {
		ifi, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		copy(l.mac[:], ifi.HardwareAddr)
		if l.ping, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP); err != nil {
			return fmt.Errorf("failed to open ICMP socket: %w", err)
		}
		l.arp, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(swap(unix.ETH_P_ARP)))
		if err != nil {
			return fmt.Errorf("failed to open packet socket: %w", err)
		}
		return unix.Bind(l.arp, &unix.SockaddrLinklayer{Protocol: swap(unix.ETH_P_ARP), Ifindex: ifi.Index})
	})
	for _, fd := range []int{l.ping, l.arp} {
		if err == nil {
			err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000})
		}
	}
	if err != nil {
		end()
		return nil, err
	}
	for _, work := range []func(context.Context){l.sendPings, l.readPings, l.sendProbes, l.readProbes, l.fetch} {
		l.working.Go(func() { work(ctx) })
	}
	return l, nil
}

func swap(v uint16) uint16 { return v<<8 | v>>8 }

func (l *Look) stop() {
	if l == nil {
		return
	}
	l.end()
	l.working.Wait()
	_ = unix.Close(l.ping)
	_ = unix.Close(l.arp)
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
	each(ctx, pingInterval, func() {
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
		_ = unix.Sendto(l.ping, b, unix.MSG_DONTWAIT, to) // what is lost is what is measured
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

func (l *Look) sendProbes(ctx context.Context) {
	vip := netip.MustParseAddr(VIP).As4()
	each(ctx, arpInterval, func() {
		b := slices.Concat([]byte{255, 255, 255, 255, 255, 255}, l.mac[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, l.mac[:],
			make([]byte, 10), vip[:])
		l.mu.Lock()
		l.rounds = append(l.rounds, round{at: time.Now()})
		l.mu.Unlock()
		_, _ = unix.Write(l.arp, b) // as above
	})
}

func (l *Look) readProbes(ctx context.Context) {
	vip := netip.MustParseAddr(VIP).As4()
	b := make([]byte, 256)
	for ctx.Err() == nil {
		n, err := unix.Read(l.arp, b)
		// A reply for the client, from the address: answers to this probe, no announcement.
		if err != nil || n < 42 || b[21] != 2 || [4]byte(b[28:32]) != vip || [6]byte(b[0:6]) != l.mac {
			continue
		}
		mac := [6]byte(b[22:28])
		l.mu.Lock()
		if last := len(l.rounds) - 1; last >= 0 && !slices.Contains(l.rounds[last].owners, mac) {
			l.rounds[last].owners = append(l.rounds[last].owners, mac)
		}
		l.mu.Unlock()
	}
}

func (l *Look) fetch(ctx context.Context) {
	client := &http.Client{Timeout: httpTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = l.host.in(func() error {
				conn, err = new(net.Dialer).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
	}}
	var working sync.WaitGroup
	each(ctx, pingInterval, func() {
		at := time.Now()
		working.Go(func() {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+VIP+"/", nil)
			if err != nil {
				return
			}
			response, err := client.Do(request)
			ok := err == nil && response.StatusCode == http.StatusOK
			if err == nil {
				_, err = io.Copy(io.Discard, response.Body)
				ok = ok && err == nil
				_ = response.Body.Close()
			}
			if ctx.Err() == nil {
				l.mu.Lock()
				l.fetched = append(l.fetched, attempt{at, ok})
				l.mu.Unlock()
			}
		})
	})
	working.Wait()
}

// answeredSince tells whether echo requests have been answered without a break of 100 ms since then.
func (l *Look) answeredSince(from time.Time) bool {
	return l.Since(from).Echo < 0.1
}

// Seen is what the client saw from a time on.
type Seen struct {
	// Echo and HTTP are the longest times without an answer, in seconds; Failed are HTTP requests that failed.
	Echo, HTTP float64
	Failed     int
	// TwoOwners are ARP probes that two stations answered, among Rounds.
	TwoOwners, Rounds int
	// Owners are the Ethernet addresses that answered.
	Owners int
}

// Since is what the client has seen from then until now. The longest time without an answer is that between two
// requests that were answered, or the time and the first or last of them.
func (l *Look) Since(from time.Time) Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	var s Seen
	s.Echo = longest(from, now, l.answered)
	var ok []time.Time
	for _, a := range l.fetched {
		if a.at.Before(from) {
			continue
		}
		if a.ok {
			ok = append(ok, a.at)
		} else {
			s.Failed++
		}
	}
	s.HTTP = longest(from, now, ok)
	owners := map[[6]byte]bool{}
	for _, r := range l.rounds {
		if r.at.Before(from) {
			continue
		}
		s.Rounds++
		if len(r.owners) > 1 {
			s.TwoOwners++
		}
		for _, mac := range r.owners {
			owners[mac] = true
		}
	}
	s.Owners = len(owners)
	return s
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
	return max(0, (most - 2*pingInterval)).Seconds()
}
