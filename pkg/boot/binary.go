package boot

import (
	"encoding/binary"
	"errors"
	"slices"
)

// version begins every encoded event, and changes with its fields. Programs of one pod come from one image, or
// from images that are replaced together: another version is refused, not read.
const version = 3

// MaxBinary is more than an encoded event takes, in bytes.
const MaxBinary = 512 + TextRoom

var errEvent = errors.New("not an event")

// coder writes an event's fields behind b, or reads them from it, in one order.
type coder struct {
	b      []byte
	reads  bool
	failed bool // b ends, or has what no field can hold
}

// number is a varint.
func number[T int64 | uint8 | uint16 | uint32 | uint64](c *coder, field *T) {
	if !c.reads {
		c.b = binary.AppendUvarint(c.b, uint64(*field))
		return
	}
	n, size := binary.Uvarint(c.b)
	if *field = T(n); size <= 0 || uint64(*field) != n {
		c.failed = true
		return
	}
	c.b = c.b[size:]
}

// octets are a zero where all of them are, as most are, and else a one and themselves.
func (c *coder) octets(field []byte) {
	some := slices.ContainsFunc(field, func(b byte) bool { return b != 0 })
	switch c.flag(&some); {
	case !some:
	case !c.reads:
		c.b = append(c.b, field...)
	case len(c.b) < len(field):
		c.failed = true
	default:
		c.b = c.b[copy(field, c.b):]
	}
}

func (c *coder) flag(field *bool) {
	n := uint8(0)
	if *field {
		n = 1
	}
	number(c, &n)
	*field = n == 1
}

// event codes all fields. A field that is added here changes the version.
func (c *coder) event(e *Event) {
	for _, n := range []*int64{&e.At, (*int64)(&e.Took)} {
		number(c, n)
	}
	for _, n := range []*uint64{&e.Bytes, &e.Expected, &e.Offset} {
		number(c, n)
	}
	for _, n := range []*uint32{&e.XID, &e.Lease, &e.Resent} {
		number(c, n)
	}
	for _, n := range []*uint16{&e.Arch, &e.Port, &e.AskedPort, &e.Status, &e.Secs, &e.Block, &e.Window} {
		number(c, n)
	}
	for _, n := range []*uint8{(*uint8)(&e.Kind), (*uint8)(&e.Outcome), &e.DHCP, &e.Priority} {
		number(c, n)
	}
	for _, yes := range []*bool{&e.V6, &e.HasArch} {
		c.flag(yes)
	}
	for _, b := range [][]byte{
		e.MAC[:], e.UUID[:], e.Client[:], e.Given[:], e.Requested[:], e.Server[:], e.Next[:], e.Relay[:], e.Endpoint[:],
	} {
		c.octets(b)
	}
	for f := range e.ends {
		number(c, &e.ends[f])
	}
}

// AppendBinary appends the encoding of an event, which takes less than [MaxBinary] bytes.
func (e *Event) AppendBinary(b []byte) []byte {
	c := coder{b: append(b, version)}
	c.event(e)
	return append(c.b, e.text[:e.ends[fields-1]]...)
}

// Decode reads the event that b begins with, and returns what is behind it: several events may follow each other. With
// an error, the event is empty.
func (e *Event) Decode(b []byte) (rest []byte, err error) {
	if e.Reset(); len(b) == 0 || b[0] != version {
		return nil, errEvent
	}
	c := coder{b: b[1:], reads: true}
	c.event(e)
	if c.failed || !e.valid() || len(c.b) < int(e.ends[fields-1]) {
		e.Reset()
		return nil, errEvent
	}
	return c.b[copy(e.text[:e.ends[fields-1]], c.b):], nil
}

// valid reports whether the fields are those of an event.
func (e *Event) valid() bool {
	return slices.IsSorted(e.ends[:]) && e.ends[fields-1] <= TextRoom && e.Kind >= DHCPRequest && e.Kind <= Syslog &&
		e.Outcome <= Dropped
}
