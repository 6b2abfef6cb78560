// Package trace keeps the last packets that a relay has received or sent, so that a machine's packets can be read after
// its boot has failed.
package trace

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/frame"
)

// snapLen is how much of a packet is kept.
const snapLen = 1514

// Protocol interprets the messages in a trace.
type Protocol struct {
	// Wall is the wall clock at a time of the relay's clock.
	Wall func(at int64) time.Time
	// Blank takes the codes of tokens out of a UDP payload: a reader of the trace must not be able to answer.
	Blank func(b []byte)
}

// packet is one of the trace. A frame has its own headers, and no addresses here.
type packet struct {
	from, to netip.AddrPort
	at       int64
	length   int
	data     [snapLen]byte
}

func (p *packet) frame() bool { return !p.from.IsValid() }

func (p *packet) bytes() []byte { return p.data[:min(p.length, snapLen)] }

// Ring is the last packets.
type Ring struct {
	protocol Protocol
	mu       sync.Mutex
	packets  []packet
	count    int // ever recorded
}

// New makes a ring for that many packets, none if it is not positive.
func New(packets int, protocol Protocol) *Ring {
	return &Ring{protocol: protocol, packets: make([]packet, max(packets, 0))}
}

// Frame keeps a copy of a frame on a listener, received or sent.
func (r *Ring) Frame(now int64, b []byte) { r.record(now, netip.AddrPort{}, netip.AddrPort{}, b) }

// Payload keeps a copy of a UDP payload. Both addresses have to be valid, and of one family.
func (r *Ring) Payload(now int64, from, to netip.AddrPort, b []byte) { r.record(now, from, to, b) }

func (r *Ring) record(now int64, from, to netip.AddrPort, b []byte) {
	if len(r.packets) == 0 {
		return
	}
	r.mu.Lock()
	p := &r.packets[r.count%len(r.packets)]
	r.count++
	p.at, p.from, p.to, p.length = now, from, to, len(b)
	copy(p.data[:], b)
	r.mu.Unlock()
}

// taken is a copy of a packet, with the time of the wall clock.
type taken struct {
	*packet
	at    time.Time
	blank func([]byte)
}

// of copies the packets of a client, of every client if mac is empty, so that writing holds no lock.
func (r *Ring) of(mac []byte) (found []taken) {
	r.mu.Lock()
	defer r.mu.Unlock()
	begin := r.protocol.Wall(0) // asked for once, or packets of one time would be put out of their order
	for i := max(0, r.count-len(r.packets)); i < r.count; i++ {
		p := &r.packets[i%len(r.packets)]
		if isOf(p.bytes(), mac) {
			c := *p
			found = append(found, taken{packet: &c, at: begin.Add(time.Duration(p.at)), blank: r.protocol.Blank})
		}
	}
	return found
}

// isOf reports whether a packet names a client: in a frame's header, as chaddr, in option 79 or a client identifier, or
// within the link-local address that is made of it.
func isOf(b, mac []byte) bool {
	if bytes.Contains(b, mac) || len(mac) != len(frame.MAC{}) {
		return bytes.Contains(b, mac)
	}
	local := frame.LinkLocal(frame.MAC(mac))
	return bytes.Contains(b, local[8:])
}

// The pcap file format: microseconds, Ethernet.
const (
	pcapMagic    = 0xa1b2c3d4
	pcapEthernet = 1
)

// Write writes the last packets of rings as a pcap file, oldest first, and only those of a client's hardware address
// unless it is empty. Packets that were exchanged with servers get an Ethernet header of zeroes, and tokens in them a
// code of zeroes.
func Write(w io.Writer, mac []byte, rings ...*Ring) error {
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
	var packets []taken
	for _, r := range rings {
		packets = append(packets, r.of(mac)...)
	}
	slices.SortStableFunc(packets, func(a, b taken) int { return a.at.Compare(b.at) })
	for _, p := range packets {
		if err := p.write(out); err != nil {
			return err
		}
	}
	return out.Flush()
}

func (p *taken) write(w io.Writer) error {
	b, length := p.bytes(), p.length
	if !p.frame() {
		p.blank(b)
		b, length = wrap(p.from, p.to, b), length+frame.HeaderLen
		if p.from.Addr().Is6() {
			length += frame.HeaderLen6 - frame.HeaderLen
		}
		b = b[:min(len(b), snapLen)]
	}
	at := p.at.UnixNano()
	header := make([]byte, 16)
	binary.LittleEndian.PutUint32(header[0:], uint32(at/1e9))
	binary.LittleEndian.PutUint32(header[4:], uint32(at%1e9/1e3))
	binary.LittleEndian.PutUint32(header[8:], uint32(len(b)))
	binary.LittleEndian.PutUint32(header[12:], uint32(length))
	if _, err := w.Write(header); err != nil {
		return err
	}
	_, err := w.Write(b)
	return err
}

// wrap puts headers in front of a payload.
func wrap(from, to netip.AddrPort, payload []byte) []byte {
	if from.Addr().Is6() {
		b := append(make([]byte, frame.HeaderLen6), payload...)
		header := frame.Header6{
			Src: from.Addr().As16(), SrcPort: from.Port(), Dst: to.Addr().As16(), DstPort: to.Port(),
		}
		header.Put(b)
		return b
	}
	b := append(make([]byte, frame.HeaderLen), payload...)
	header := frame.Header{Src: from.Addr().As4(), SrcPort: from.Port(), Dst: to.Addr().As4(), DstPort: to.Port()}
	header.Put(b)
	return b
}
