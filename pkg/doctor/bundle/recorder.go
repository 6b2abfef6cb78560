package bundle

import (
	"bytes"
	"encoding/binary"
	"io"
	"regexp"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/trace"
)

// Recorder keeps the packets of a run: the doctor's own, and the answers to it. Of what documents hold there is
// nothing, and of DHCP no option that may be a secret.
type Recorder struct {
	ring  *trace.Ring
	began time.Time

	mu    sync.Mutex
	own   frame.MAC
	xids  map[[4]byte]bool // of DHCP and DHCPv6, as the first bytes with the type blanked
	masks int
}

// mostFrames is how many are kept: a run sends some hundred.
const mostFrames = 2048

// NewRecorder makes a recorder.
func NewRecorder() *Recorder {
	began := time.Now()
	wall := func(at int64) time.Time { return began.Add(time.Duration(at)) }
	return &Recorder{
		ring: trace.New(mostFrames, trace.Protocol{Wall: wall}), began: began, xids: map[[4]byte]bool{},
	}
}

// See takes a frame, which stays the caller's.
func (r *Recorder) See(sent bool, b []byte) {
	if len(b) < frame.EthernetLen {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if sent {
		r.own = frame.MAC(b[6:12])
	}
	kept := r.cut(bytes.Clone(b), sent)
	if len(kept) > 0 {
		r.ring.Frame(int64(time.Since(r.began)), kept)
	}
}

func (r *Recorder) write(w io.Writer) error { return trace.Write(w, nil, 0, r.ring) }

func (r *Recorder) taken() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.masks
}

const (
	etherIPv4, etherARP, etherIPv6 = 0x0800, 0x0806, frame.EtherTypeIPv6

	icmp, tcp, udp, icmp6 = 1, 6, 17, 58
	// begin is how much of a datagram's payload stays: the kind of a message of TFTP, and the number of its block.
	begin = 4
	// about is how much of a message of ICMP stays: its header, and the headers of the packet that it is about.
	about, about6 = 8 + 20 + 8, 8 + 40 + 8
)

// cut is what is kept of a frame; nil: nothing, as it is another station's.
func (r *Recorder) cut(b []byte, sent bool) []byte {
	ours := sent || frame.MAC(b[:6]) == r.own
	var at int
	var protocol byte
	switch kind := binary.BigEndian.Uint16(b[12:]); {
	case kind == etherARP && ours:
		return b[:min(len(b), 42)]
	case kind == etherIPv4 && len(b) >= frame.EthernetLen+frame.IPv4Len:
		protocol, at = b[frame.EthernetLen+9], frame.EthernetLen+int(b[frame.EthernetLen]&15)*4
	case kind == etherIPv6 && len(b) >= frame.EthernetLen+frame.IPv6Len:
		protocol, at = b[frame.EthernetLen+6], frame.EthernetLen+frame.IPv6Len
	default:
		return nil
	}
	if len(b) < at+frame.UDPLen {
		return nil
	}
	switch protocol {
	case udp:
		return r.datagram(b, at, sent, ours)
	case tcp:
		if !ours || len(b) < at+20 {
			return nil
		}
		return b[:min(len(b), at+int(b[at+12]>>4)*4)]
	case icmp:
		if !ours {
			return nil
		}
		return b[:min(len(b), at+about)]
	case icmp6: // neighbours and routers speak to all
		if !ours && (b[at] < 134 || b[at] > 136) {
			return nil
		}
		return b[:min(len(b), at+about6)]
	}
	return nil
}

// datagram is what is kept of one of UDP.
func (r *Recorder) datagram(b []byte, at int, sent, ours bool) []byte {
	from, to, payload := binary.BigEndian.Uint16(b[at:]), binary.BigEndian.Uint16(b[at+2:]), b[at+frame.UDPLen:]
	isDHCP := func(ports ...uint16) bool {
		return (from == ports[0] || from == ports[1]) && (to == ports[0] || to == ports[1])
	}
	var xid [4]byte
	switch {
	case isDHCP(67, 68) && len(payload) >= 240:
		xid = [4]byte(payload[4:8])
	case isDHCP(546, 547) && len(payload) >= begin:
		xid = [4]byte{0, payload[1], payload[2], payload[3]}
	default:
		if !ours {
			return nil
		}
		return b[:min(len(b), at+frame.UDPLen+begin)]
	}
	if sent {
		r.xids[xid] = true
	}
	if !r.xids[xid] {
		return nil
	}
	if isDHCP(67, 68) {
		const name, file, cookie, options = 44, 108, 236, 240
		r.blankURLs(payload[name:file])
		r.blankURLs(payload[file:cookie])
		r.blankOptions(payload[options:])
	} else {
		r.blankOptions6(payload[begin:])
	}
	b[at+6], b[at+7] = 0, 0 // a checksum would tell that something was changed, and what
	return b
}

func (r *Recorder) blank(b []byte) {
	for i := range b {
		b[i] = '*'
	}
	r.masks++
}

// blankOptions takes out what vendors and authentication put into options, and parts of long options, in which a URL
// cannot be told.
func (r *Recorder) blankOptions(options []byte) {
	const vendor, authentication, end = 43, 90, 255
	seen := map[byte]bool{}
	for len(options) >= 2 && options[0] != end {
		code, size := options[0], int(options[1])
		if code == 0 {
			options = options[1:]
			continue
		}
		value := options[2:min(len(options), 2+size)]
		if len(value) > 0 && (code == vendor || code == authentication || seen[code]) {
			r.blank(value)
		}
		r.blankURLs(value)
		seen[code] = true
		options = options[2+len(value):]
	}
}

// blankOptions6 does so for DHCPv6.
func (r *Recorder) blankOptions6(options []byte) {
	const header, authentication, vendor = 4, 11, 17
	for len(options) >= header {
		code, size := binary.BigEndian.Uint16(options), int(binary.BigEndian.Uint16(options[2:]))
		value := options[header:min(len(options), header+size)]
		if len(value) > 0 && (code == authentication || code == vendor) {
			r.blank(value)
		}
		r.blankURLs(value)
		options = options[header+len(value):]
	}
}

// secrets are the parts of URLs that may be some, and tokens.
var secrets = []*regexp.Regexp{
	regexp.MustCompile(`://([^/@\x00\s]+)@`), regexp.MustCompile(`://[^?#\x00\s]*[?#]([!-~]+)`),
	regexp.MustCompile(`([A-Za-z0-9._-]*eyJ[A-Za-z0-9._-]+)`),
	regexp.MustCompile(`(?i)(?:passw|token|secret)[a-z]*[=:]([!-~]+)`),
}

func (r *Recorder) blankURLs(text []byte) {
	for _, pattern := range secrets {
		for _, found := range pattern.FindAllSubmatchIndex(text, -1) {
			r.blank(text[found[2]:found[3]])
		}
	}
}
