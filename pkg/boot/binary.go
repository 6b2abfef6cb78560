package boot

import (
	"encoding/binary"
	"errors"
	"time"
)

// version begins every encoded event. Programs of one pod come from one image, or from images that are replaced
// together: another version is refused, not read.
const version = 1

// MaxBinary is the most bytes that an encoded event takes.
const MaxBinary = 1 + // version
	4 + // kind, outcome, type, flags
	4 + // what is there
	8 + 10 + // times
	6 + 16 + // MAC, UUID
	7*17 + // addresses
	9*5 + 3*10 + // numbers
	int(fields)*2 + TextRoom

// What an event's encoding has, by bit. Most events have few of the fields.
const (
	hasMAC = 1 << iota
	hasUUID
	hasXID
	hasArch
	hasSecs
	hasLease
	hasClient
	hasGiven
	hasRequested
	hasServer
	hasNext
	hasRelay
	hasEndpoint
	hasPort
	hasRoute
	hasStatus
	hasBytes
	hasExpected
	hasResent
	hasBlock
	hasWindow
	hasOffset
	hasPriority
	hasText
	hasAll = 1<<iota - 1
)

const flagV6 = 1

var errEvent = errors.New("not an event")

// AppendBinary appends the encoding of an event, which takes [MaxBinary] bytes at most. The error is always nil.
func (e *Event) AppendBinary(b []byte) ([]byte, error) {
	flags := byte(0)
	if e.V6 {
		flags |= flagV6
	}
	b = append(b, version, byte(e.Kind), byte(e.Outcome), e.DHCP, flags)
	at := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, uint64(e.At))
	b = binary.AppendVarint(b, int64(e.Took))
	w := writer{b: b}
	if e.MAC != [6]byte{} {
		w.has |= hasMAC
		w.b = append(w.b, e.MAC[:]...)
	}
	if e.UUID != [16]byte{} {
		w.has |= hasUUID
		w.b = append(w.b, e.UUID[:]...)
	}
	w.number(hasXID, uint64(e.XID))
	if e.HasArch {
		w.has |= hasArch
		w.b = binary.AppendUvarint(w.b, uint64(e.Arch))
	}
	w.number(hasSecs, uint64(e.Secs))
	w.number(hasLease, uint64(e.Lease))
	w.address(hasClient, &e.Client)
	w.address(hasGiven, &e.Given)
	w.address(hasRequested, &e.Requested)
	w.address(hasServer, &e.Server)
	w.address(hasNext, &e.Next)
	w.address(hasRelay, &e.Relay)
	w.address(hasEndpoint, &e.Endpoint)
	w.number(hasPort, uint64(e.Port))
	w.number(hasRoute, uint64(e.Route))
	w.number(hasStatus, uint64(e.Status))
	w.number(hasBytes, e.Bytes)
	w.number(hasExpected, e.Expected)
	w.number(hasResent, uint64(e.Resent))
	w.number(hasBlock, uint64(e.Block))
	w.number(hasWindow, uint64(e.Window))
	w.number(hasOffset, e.Offset)
	w.number(hasPriority, uint64(e.Priority))
	if end := e.ends[fields-1]; end > 0 {
		w.has |= hasText
		for f := range fields {
			w.b = binary.AppendUvarint(w.b, uint64(len(e.Text(f))))
		}
		w.b = append(w.b, e.text[:end]...)
	}
	binary.BigEndian.PutUint32(w.b[at:], w.has)
	return w.b, nil
}

// writer appends fields and notes which there are.
type writer struct {
	b   []byte
	has uint32
}

func (w *writer) number(bit uint32, n uint64) {
	if n != 0 {
		w.has |= bit
		w.b = binary.AppendUvarint(w.b, n)
	}
}

// address writes 4 bytes of an IPv4 address and all of others.
func (w *writer) address(bit uint32, a *[16]byte) {
	switch {
	case *a == [16]byte{}:
	case mapped(a):
		w.has |= bit
		w.b = append(append(w.b, 4), a[12:]...)
	default:
		w.has |= bit
		w.b = append(append(w.b, 16), a[:]...)
	}
}

func mapped(a *[16]byte) bool {
	return [12]byte(a[:12]) == [12]byte{10: 0xff, 11: 0xff}
}

// Decode reads the event that b begins with, and returns what is behind it: several events may follow each other. With
// an error, the event is empty.
func (e *Event) Decode(b []byte) (rest []byte, err error) {
	e.Reset()
	if len(b) < 17 || b[0] != version {
		return nil, errEvent
	}
	r := reader{b: b[9:], has: binary.BigEndian.Uint32(b[5:])}
	e.Kind, e.Outcome, e.DHCP, e.V6 = Kind(b[1]), Outcome(b[2]), b[3], b[4] == flagV6
	r.bad = r.has&^uint32(hasAll) != 0 || b[4]&^byte(flagV6) != 0 ||
		e.Kind < DHCPRequest || e.Kind > Acknowledged || e.Outcome > Dropped
	e.At = int64(binary.BigEndian.Uint64(r.next(8)))
	e.Took = r.duration()
	if r.has&hasMAC != 0 {
		copy(e.MAC[:], r.next(6))
	}
	if r.has&hasUUID != 0 {
		copy(e.UUID[:], r.next(16))
	}
	e.XID = uint32(r.number(hasXID, 32))
	e.HasArch = r.has&hasArch != 0
	e.Arch = uint16(r.number(hasArch, 16))
	e.Secs = uint16(r.number(hasSecs, 16))
	e.Lease = uint32(r.number(hasLease, 32))
	r.address(hasClient, &e.Client)
	r.address(hasGiven, &e.Given)
	r.address(hasRequested, &e.Requested)
	r.address(hasServer, &e.Server)
	r.address(hasNext, &e.Next)
	r.address(hasRelay, &e.Relay)
	r.address(hasEndpoint, &e.Endpoint)
	e.Port = uint16(r.number(hasPort, 16))
	e.Route = uint16(r.number(hasRoute, 16))
	e.Status = uint16(r.number(hasStatus, 16))
	e.Bytes = r.number(hasBytes, 64)
	e.Expected = r.number(hasExpected, 64)
	e.Resent = uint32(r.number(hasResent, 32))
	e.Block = uint16(r.number(hasBlock, 16))
	e.Window = uint16(r.number(hasWindow, 16))
	e.Offset = r.number(hasOffset, 64)
	e.Priority = uint8(r.number(hasPriority, 8))
	r.text(e)
	if r.bad {
		e.Reset()
		return nil, errEvent
	}
	return r.b, nil
}

// reader takes fields off. After the first that is not there, bad is set and everything else is zero.
type reader struct {
	b   []byte
	has uint32
	bad bool
}

var zeros [16]byte

func (r *reader) next(n int) []byte {
	if r.bad || len(r.b) < n {
		r.bad = true
		return zeros[:n]
	}
	field := r.b[:n]
	r.b = r.b[n:]
	return field
}

func (r *reader) duration() time.Duration {
	d, n := binary.Varint(r.b)
	if r.bad || n <= 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return time.Duration(d)
}

func (r *reader) uvarint(bits uint) uint64 {
	v, n := binary.Uvarint(r.b)
	if r.bad || n <= 0 || bits < 64 && v>>bits != 0 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) number(bit uint32, bits uint) uint64 {
	if r.has&bit == 0 {
		return 0
	}
	return r.uvarint(bits)
}

func (r *reader) address(bit uint32, a *[16]byte) {
	if r.has&bit == 0 {
		return
	}
	switch r.next(1)[0] {
	case 4:
		*a = [16]byte{10: 0xff, 11: 0xff}
		copy(a[12:], r.next(4))
	case 16:
		copy(a[:], r.next(16))
	default:
		r.bad = true
	}
}

func (r *reader) text(e *Event) {
	if r.has&hasText == 0 {
		return
	}
	end := uint64(0)
	for f := range fields {
		n := r.uvarint(16)
		if end += n; end > TextRoom {
			r.bad = true
			return
		}
		e.ends[f] = uint16(end)
	}
	if r.bad || uint64(len(r.b)) < end {
		r.bad = true
		return
	}
	copy(e.text[:], r.b[:end])
	r.b = r.b[end:]
}
