// Package arp tells by ARP which station of a link has an address, and whether two ever have it at one time.
package arp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Interval is the time between two probes.
const Interval = 100 * time.Millisecond

// ErrTwoOwners is the verdict that two stations answered one probe.
var ErrTwoOwners = errors.New("two stations answered one ARP probe")

// Sampler asks a link for an address by ARP all the time, and notes which stations answer each probe. Each probe has a
// sender of its own, so that an answer which is late is not taken for one to the next probe: two stations that answer
// one probe had the address when it reached them. None of its code is stack-lb's.
type Sampler struct {
	fd      int
	address [4]byte
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

// Sample begins to ask for an IPv4 address on a link of the calling thread's network namespace. The names are those of
// the stations that may answer; another one has its Ethernet address as its name.
func Sample(link string, address netip.Addr, names map[[6]byte]string) (*Sampler, error) {
	own, err := net.InterfaceByName(link)
	if err != nil {
		return nil, fmt.Errorf("failed to find %s: %w", link, err)
	}
	s := &Sampler{fd: -1, address: address.As4(), names: names}
	if err := s.open(own.Index); err != nil {
		if s.fd >= 0 {
			_ = unix.Close(s.fd)
		}
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	s.end = end
	s.working.Go(func() { s.ask(ctx) })
	s.working.Go(func() { s.hear(ctx) })
	return s, nil
}

func (s *Sampler) open(index int) (err error) {
	s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(swap(unix.ETH_P_ARP)))
	if err != nil {
		return fmt.Errorf("failed to open packet socket: %w", err)
	}
	// Answers are for senders that no link has.
	all := &unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(s.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, all); err != nil {
		return fmt.Errorf("failed to hear all: %w", err)
	}
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000}); err != nil {
		return fmt.Errorf("failed to set time-out of packet socket: %w", err)
	}
	if err := unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: swap(unix.ETH_P_ARP), Ifindex: index}); err != nil {
		return fmt.Errorf("failed to bind packet socket: %w", err)
	}
	return nil
}

// swap puts a protocol into the order of the network.
func swap(v uint16) uint16 { return v<<8 | v>>8 }

// Stop ends the sampler. What it has noted stays.
func (s *Sampler) Stop() {
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
	// An ordinary question: one from nowhere (RFC 5227) says that its sender is about to claim the address. No host of
	// the labs has the source.
	source := s.address
	source[3] = 253
	ticker := time.NewTicker(Interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		from := sender
		binary.BigEndian.PutUint16(from[4:], uint16(len(s.probes)))
		s.probes = append(s.probes, probe{at: time.Now()})
		s.mu.Unlock()
		b := slices.Concat([]byte{255, 255, 255, 255, 255, 255}, from[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, from[:],
			source[:], make([]byte, 6), s.address[:])
		_, _ = unix.Write(s.fd, b) // a probe that was not sent has no answer
	}
}

func (s *Sampler) hear(ctx context.Context) {
	b := make([]byte, 256)
	for ctx.Err() == nil {
		n, err := unix.Read(s.fd, b)
		// A reply to a probe of ours, from the address. Announcements go to all.
		if err != nil || n < 42 || b[21] != 2 || [4]byte(b[28:32]) != s.address || [4]byte(b[0:4]) != [4]byte(sender[:4]) {
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

// Owner is the station that alone has answered last.
func (s *Sampler) Owner() string {
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

// Fault is an error if two owners were ever seen.
func (l Log) Fault() error {
	if l.TwoOwners == 0 {
		return nil
	}
	first := slices.IndexFunc(l.Spans, func(s Span) bool { return strings.Contains(s.Owners, " ") })
	return fmt.Errorf("%w: %d of %d, first %s at %s", ErrTwoOwners, l.TwoOwners, l.Probes, l.Spans[first].Owners,
		l.Spans[first].At.Format(time.RFC3339Nano))
}

// Silence is the longest time without an answer between two answers.
func (l Log) Silence() (longest time.Duration) {
	for i := 1; i+1 < len(l.Spans); i++ {
		if l.Spans[i].Owners == "" {
			longest = max(longest, l.Spans[i+1].At.Sub(l.Spans[i].At))
		}
	}
	return longest
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
