package failover

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// sampleInterval is the time between two ARP probes.
const sampleInterval = 100 * time.Millisecond

// Sampler is a host of its own that asks the link for the address by ARP all the time, and notes which stations answer
// each probe. Each probe has a sender of its own, so that an answer which is late is not taken for one to the next
// probe: two stations that answer one probe had the address when it reached them. None of its code is stack-lb's.
type Sampler struct {
	fd      int
	names   map[[6]byte]string
	working sync.WaitGroup
	end     context.CancelFunc

	mu     sync.Mutex
	probes []probe
}

// probe is an ARP probe, and the stations that have answered it, sorted.
type probe struct {
	at     time.Time
	owners []string
}

// newSampler begins to ask. The names are those of the stations that may answer.
func newSampler(h *host, names map[[6]byte]string) (*Sampler, error) {
	ctx, end := context.WithCancel(context.Background())
	s := &Sampler{end: end, fd: -1, names: names}
	err := h.in(func() (err error) {
		own, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(swap(unix.ETH_P_ARP)))
		if err != nil {
			return fmt.Errorf("failed to open packet socket: %w", err)
		}
		all := &unix.PacketMreq{Ifindex: int32(own.Index), Type: unix.PACKET_MR_PROMISC}
		if err := unix.SetsockoptPacketMreq(s.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, all); err != nil {
			return fmt.Errorf("failed to hear all: %w", err)
		}
		if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}); err != nil {
			return err
		}
		return unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: swap(unix.ETH_P_ARP), Ifindex: own.Index})
	})
	if err != nil {
		end()
		if s.fd >= 0 {
			_ = unix.Close(s.fd)
		}
		return nil, err
	}
	s.working.Go(func() { s.ask(ctx) })
	s.working.Go(func() { s.hear(ctx) })
	return s, nil
}

// swap puts a protocol into the order of the network.
func swap(v uint16) uint16 { return v<<8 | v>>8 }

func (s *Sampler) stop() {
	if s == nil {
		return
	}
	s.end()
	s.working.Wait()
	_ = unix.Close(s.fd)
}

// sender is the Ethernet address from which a probe is sent; its last two bytes are the probe's number.
var sender = [6]byte{2, 0x5a, 0x5a, 0x5a, 0, 0}

func (s *Sampler) ask(ctx context.Context) {
	vip := netip.MustParseAddr(VIP).As4()
	each(ctx, sampleInterval, func() {
		s.mu.Lock()
		from := sender
		binary.BigEndian.PutUint16(from[4:], uint16(len(s.probes)))
		s.probes = append(s.probes, probe{at: time.Now()})
		s.mu.Unlock()
		b := slices.Concat([]byte{255, 255, 255, 255, 255, 255}, from[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, from[:],
			make([]byte, 10), vip[:])
		_, _ = unix.Write(s.fd, b) // a probe that was not sent has no answer
	})
}

func (s *Sampler) hear(ctx context.Context) {
	vip := netip.MustParseAddr(VIP).As4()
	b := make([]byte, 256)
	for ctx.Err() == nil {
		n, err := unix.Read(s.fd, b)
		// A reply to a probe of ours, from the address. Announcements go to all.
		if err != nil || n < 42 || b[21] != 2 || [4]byte(b[28:32]) != vip || [4]byte(b[0:4]) != [4]byte(sender[:4]) {
			continue
		}
		s.answered(binary.BigEndian.Uint16(b[4:6]), [6]byte(b[22:28]))
	}
}

// answered notes an answer to the newest probe of that number.
func (s *Sampler) answered(number uint16, mac [6]byte) {
	name := s.names[mac]
	if name == "" {
		name = net.HardwareAddr(mac[:]).String()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.probes) - 1
	i := last - int(uint16(last)-number)
	if i < 0 || slices.Contains(s.probes[i].owners, name) {
		return
	}
	s.probes[i].owners = append(s.probes[i].owners, name)
	slices.Sort(s.probes[i].owners)
}

// owner is the station that alone has answered last.
func (s *Sampler) owner() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.Backward(s.probes) {
		if len(p.owners) == 1 {
			return p.owners[0]
		}
	}
	return ""
}

// Span are probes in a row that the same stations have answered.
type Span struct {
	// At is when the first was sent, and Probes is how many there are.
	At     time.Time `json:"at"`
	Probes int       `json:"probes"`
	// Owners are the names of the stations, with spaces between them. It is empty if none has answered.
	Owners string `json:"owners"`
}

// Log is what a sampler has seen.
type Log struct {
	Probes    int    `json:"probes"`
	NoOwner   int    `json:"no_owner"`
	TwoOwners int    `json:"two_owners"`
	Moves     int    `json:"moves"`
	Spans     []Span `json:"spans"`
}

// fault is an error if two owners were ever seen.
func (l Log) fault() error {
	if l.TwoOwners == 0 {
		return nil
	}
	first := slices.IndexFunc(l.Spans, func(s Span) bool { return strings.Contains(s.Owners, " ") })
	return fmt.Errorf("%w: %d of %d, first %s at %s", ErrTwoOwners, l.TwoOwners, l.Probes, l.Spans[first].Owners,
		l.Spans[first].At.Format(time.RFC3339Nano))
}

// Since is what was seen from then until now. The newest probe is left out, whose answers may be under way.
func (s *Sampler) Since(from time.Time) Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	var log Log
	owner := ""
	for _, p := range s.probes[:max(0, len(s.probes)-1)] {
		if p.at.Before(from) {
			if len(p.owners) == 1 {
				owner = p.owners[0]
			}
			continue
		}
		log.Probes++
		switch len(p.owners) {
		case 0:
			log.NoOwner++
		case 1:
			if owner != "" && owner != p.owners[0] {
				log.Moves++
			}
			owner = p.owners[0]
		default:
			log.TwoOwners++
		}
		names := strings.Join(p.owners, " ")
		if last := len(log.Spans) - 1; last >= 0 && log.Spans[last].Owners == names {
			log.Spans[last].Probes++
		} else {
			log.Spans = append(log.Spans, Span{At: p.at.UTC(), Probes: 1, Owners: names})
		}
	}
	return log
}
