package relay

import (
	"bufio"
	"encoding/binary"
	"io"
	"sync"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
)

// event is where a packet of the trace was seen.
type event uint8

const (
	onListener   event = iota // a frame, received or sent
	sentToServer              // a UDP payload, and so are the others
	fromServer
	fromUnicast
	toUnicast
)

// snapLen is how much of a packet is kept.
const snapLen = 1514

type snapshot struct {
	at       int64
	event    event
	from, to peer
	length   int
	data     [snapLen]byte
}

// trace keeps the last packets, so that what a machine did can be looked at after it failed.
type trace struct {
	mu    sync.Mutex
	ring  []snapshot
	count int // ever recorded
}

func newTrace(packets int) *trace { return &trace{ring: make([]snapshot, max(packets, 0))} }

// record keeps a copy of a packet. from and to are for events that have no headers of their own.
func (t *trace) record(now int64, e event, from, to peer, b []byte) {
	if len(t.ring) == 0 {
		return
	}
	t.mu.Lock()
	s := &t.ring[t.count%len(t.ring)]
	t.count++
	s.at, s.event, s.from, s.to, s.length = now, e, from, to, len(b)
	copy(s.data[:], b)
	t.mu.Unlock()
}

// The pcap file format: microseconds, Ethernet.
const (
	pcapMagic    = 0xa1b2c3d4
	pcapEthernet = 1
)

// WriteTrace writes the last packets as a pcap file: at most limit of them (0: all), and only those of a client's
// hardware address unless it is empty. Packets that were exchanged with servers get an Ethernet header of zeroes, and
// tokens in them a code of zeroes.
func (r *Relay) WriteTrace(w io.Writer, chaddr []byte, limit int) error {
	out := bufio.NewWriter(w)
	header := make([]byte, 24)
	binary.LittleEndian.PutUint32(header[0:], pcapMagic)
	binary.LittleEndian.PutUint16(header[4:], 2)
	binary.LittleEndian.PutUint16(header[6:], 4)
	binary.LittleEndian.PutUint32(header[16:], snapLen)
	binary.LittleEndian.PutUint32(header[20:], pcapEthernet)
	if _, err := out.Write(header); err != nil {
		return err
	}
	for _, s := range r.trace.snapshots(chaddr, limit) {
		if err := r.writePacket(out, s); err != nil {
			return err
		}
	}
	return out.Flush()
}

// snapshots copies what was asked for, oldest first, so that writing holds no lock.
func (t *trace) snapshots(chaddr []byte, limit int) []snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	var found []snapshot
	for i := max(0, t.count-len(t.ring)); i < t.count; i++ {
		if s := &t.ring[i%len(t.ring)]; s.of(chaddr) {
			found = append(found, *s)
		}
	}
	if limit > 0 && len(found) > limit {
		found = found[len(found)-limit:]
	}
	return found
}

// of tells whether the packet belongs to a client.
func (s *snapshot) of(chaddr []byte) bool {
	if len(chaddr) == 0 {
		return true
	}
	m := dhcp.Message(s.data[:min(s.length, snapLen)])
	if s.event == onListener {
		datagram, fault := frame.Parse(m, frame.Trust)
		if fault != frame.OK {
			return false
		}
		m = datagram.Payload
	}
	if m.Check() != dhcp.OK || int(m.HLen()) < len(chaddr) {
		return false
	}
	got := m.Chaddr()
	return string(got[:len(chaddr)]) == string(chaddr)
}

func (r *Relay) writePacket(w io.Writer, s snapshot) error {
	packet := s.data[:min(s.length, snapLen)]
	length := s.length
	if s.event != onListener {
		blank(packet)
		packet = append(make([]byte, frame.HeaderLen), packet...)
		header := frame.Header{Src: s.from.ip, SrcPort: s.from.port, Dst: s.to.ip, DstPort: s.to.port}
		header.Put(packet)
		length += frame.HeaderLen
		packet = packet[:min(len(packet), snapLen)]
	}
	at := r.wall(s.at).UnixNano()
	header := make([]byte, 16)
	binary.LittleEndian.PutUint32(header[0:], uint32(at/1e9))
	binary.LittleEndian.PutUint32(header[4:], uint32(at%1e9/1e3))
	binary.LittleEndian.PutUint32(header[8:], uint32(len(packet)))
	binary.LittleEndian.PutUint32(header[12:], uint32(length))
	if _, err := w.Write(header); err != nil {
		return err
	}
	_, err := w.Write(packet)
	return err
}
