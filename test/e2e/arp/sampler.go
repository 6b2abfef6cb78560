// Package arp tells by ARP which station of a link has an address, and whether two ever have it at one time.
package arp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Interval is the time between two probes of an address, of so many.
func Interval(addresses int) time.Duration {
	return max(10*time.Millisecond, time.Duration(addresses)*time.Millisecond)
}

// ErrTwoOwners is the verdict that two stations answered one probe.
var ErrTwoOwners = errors.New("two stations answered one ARP probe")

// Sampler asks a link for addresses by ARP all the time, and notes which stations answer each probe. Each probe has a
// sender of its own, so that an answer which is late is not taken for one to the next probe: two stations that answer
// one probe had the address when it reached them. None of its code is stack-lb's.
type Sampler struct {
	fd      int
	names   map[[6]byte]string
	working sync.WaitGroup
	end     context.CancelFunc

	mu      sync.Mutex
	targets []*target
	frames  map[string]int
}

// target is an address, and what is known of it. All targets have as many probes.
type target struct {
	address [4]byte
	probes  []probe
	claims  []claim
}

// probe is an ARP probe, and the stations that have answered it, sorted.
type probe struct {
	at     time.Time
	owners []string
}

// claim is an announcement: a station told all that it has the address.
type claim struct {
	at time.Time
	by string
}

// Sample begins to ask for IPv4 addresses on a link of the calling thread's network namespace. The names are those of
// the stations that may answer; another one has its Ethernet address as its name.
func Sample(link string, names map[[6]byte]string, addresses ...netip.Addr) (*Sampler, error) {
	own, err := net.InterfaceByName(link)
	if err != nil {
		return nil, fmt.Errorf("failed to find %s: %w", link, err)
	}
	s := &Sampler{fd: -1, names: names, frames: map[string]int{}}
	for _, address := range addresses {
		s.targets = append(s.targets, &target{address: address.As4()})
	}
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
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, room); err != nil {
		return fmt.Errorf("failed to make room for answers: %w", err)
	}
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

// room is for the answers to a probe for each of many addresses, in bytes.
const room = 4 << 20

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
	ticker := time.NewTicker(Interval(len(s.targets)))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, t := range s.targets {
			s.mu.Lock()
			from := sender
			binary.BigEndian.PutUint16(from[4:], uint16(len(t.probes)))
			t.probes = append(t.probes, probe{at: time.Now()})
			s.mu.Unlock()
			// An ordinary question: one from nowhere (RFC 5227) says that its sender is about to claim the address. No host
			// of the labs has the source.
			source := t.address
			source[3] = 253
			b := slices.Concat([]byte{255, 255, 255, 255, 255, 255}, from[:], []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, from[:],
				source[:], make([]byte, 6), t.address[:])
			_, _ = unix.Write(s.fd, b) // a probe that was not sent has no answer
		}
	}
}

func (s *Sampler) hear(ctx context.Context) {
	b := make([]byte, 256)
	for ctx.Err() == nil {
		n, err := unix.Read(s.fd, b)
		if err != nil || n < 42 {
			continue
		}
		s.heard(b[:n], time.Now())
	}
}

// heard notes a frame: an answer to a probe of ours, or what a station tells or asks all.
func (s *Sampler) heard(b []byte, at time.Time) {
	address, mac := [4]byte(b[28:32]), [6]byte(b[22:28])
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.targets, func(t *target) bool { return t.address == address })
	switch {
	case [6]byte(b[0:6]) == [6]byte{255, 255, 255, 255, 255, 255}:
		s.frames[s.name(mac)]++
		if i >= 0 && address == [4]byte(b[38:42]) {
			s.targets[i].claims = append(s.targets[i].claims, claim{at, s.name(mac)})
		}
	case i >= 0 && b[21] == 2 && [4]byte(b[0:4]) == [4]byte(sender[:4]):
		s.targets[i].answered(binary.BigEndian.Uint16(b[4:6]), s.name(mac))
	}
}

func (s *Sampler) name(mac [6]byte) string {
	if name := s.names[mac]; name != "" {
		return name
	}
	return net.HardwareAddr(mac[:]).String()
}

// Frames are how many frames of ARP each station has sent to all until now, as far as they came here.
func (s *Sampler) Frames() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.frames)
}

// answered notes an answer to the newest probe of that number.
func (t *target) answered(number uint16, name string) {
	last := len(t.probes) - 1
	i := last - int(uint16(last)-number)
	if i < 0 || slices.Contains(t.probes[i].owners, name) {
		return
	}
	t.probes[i].owners = append(t.probes[i].owners, name)
	slices.Sort(t.probes[i].owners)
}

// Owners are how many addresses each station has, of those that it alone has answered last.
func (s *Sampler) Owners() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	owners := map[string]int{}
	for _, t := range s.targets {
		if owner := t.owner(len(t.probes)); owner != "" {
			owners[owner]++
		}
	}
	return owners
}

// owner is the station that alone has answered last before a probe.
func (t *target) owner(before int) string {
	for _, p := range slices.Backward(t.probes[:before]) {
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
	Probes    int `json:"probes"`
	NoOwner   int `json:"no_owner"`
	TwoOwners int `json:"two_owners"`
	Moves     int `json:"moves"`
	// Stale are announcements of a station that did not have the address then, nor within a second.
	Stale int    `json:"stale"`
	Spans []Span `json:"spans"`
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

// Since is what was seen from then until now, of each address. The newest probe is left out, whose answers may be under
// way.
func (s *Sampler) Since(from time.Time) (logs []Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.targets {
		logs = append(logs, t.since(from))
	}
	return logs
}

func (t *target) since(from time.Time) (log Log) {
	first := t.first(from)
	owner := t.owner(first)
	for _, p := range t.probes[first:max(first, len(t.probes)-1)] {
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
	for _, c := range t.claims {
		if !c.at.Before(from) && t.stale(c) {
			log.Stale++
		}
	}
	return log
}

// first is the first probe that was not sent before a time.
func (t *target) first(from time.Time) int {
	return sort.Search(len(t.probes), func(i int) bool { return !t.probes[i].at.Before(from) })
}

// stale reports whether a station announced the address without having it: it has answered neither the probe before
// nor any one within a second.
func (t *target) stale(c claim) bool {
	for _, p := range t.probes[max(0, t.first(c.at)-1):t.first(c.at.Add(time.Second))] {
		if slices.Contains(p.owners, c.by) {
			return false
		}
	}
	return true
}
