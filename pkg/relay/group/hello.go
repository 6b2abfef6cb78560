package group

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"time"
)

// Hello is the message that a replica sends to the others on its VLAN.
type Hello struct {
	State
	// Stamp grows with each hello of a process: its wall clock when it began, and the time since, in nanoseconds.
	Stamp int64
}

// The bytes of a hello, behind the Ethernet header:
//
//	magic (4) | version (1) | flags (1) | zero (2) | group (8) | ID (8) | stamp (8) | HMAC-SHA-256 (first 16), or zero
const (
	// HelloLen is their length.
	HelloLen  = helloBody + helloCode
	helloBody = 32
	helloCode = 16

	helloMagic   = "stkr"
	helloVersion = 1

	flagAble    = 1
	flagOwner   = 2
	flagLeaving = 4
)

// MaxSkew is how far the wall clocks of replicas that share a key may be apart: a hello that is older could be a
// recorded one.
const MaxSkew = 30 * time.Second

// Refusal is why a hello counts for nothing. The zero value is a good one.
type Refusal uint8

// The refusals.
const (
	Accepted   Refusal = iota
	NoHello            // another protocol uses the EtherType
	OtherGroup         // of another installation
	BadCode            // no key, another key, or forged
	BadTime            // the sender's clock differs by more than MaxSkew, or the hello was recorded
	// NumRefusals is how many there are.
	NumRefusals
)

var refusalNames = [NumRefusals]string{"accepted", "no-hello", "other-group", "bad-code", "bad-time"}

func (r Refusal) String() string { return refusalNames[r] }

// Codec writes and reads the hellos of one group. It is for one goroutine.
type Codec struct {
	group [8]byte
	mac   hash.Hash // nil: no key
	sum   [sha256.Size]byte
}

// NewCodec makes a codec for the replicas that have the same name, and the same key or none.
func NewCodec(name string, key []byte) *Codec {
	sum := sha256.Sum256([]byte(name))
	c := &Codec{group: [8]byte(sum[:8])}
	if len(key) > 0 {
		// Not the key itself: it signs other things, which must not be taken for hellos.
		derived := sha256.Sum256(append([]byte("stack relay hello\x00"), key...))
		c.mac = hmac.New(sha256.New, derived[:])
	}
	return c
}

// Append appends a hello.
func (c *Codec) Append(b []byte, h Hello) []byte {
	start := len(b)
	b = append(b, helloMagic...)
	flags := bit(h.Able, flagAble) | bit(h.Owner, flagOwner) | bit(h.Leaving, flagLeaving)
	b = append(b, helloVersion, flags, 0, 0)
	b = append(b, c.group[:]...)
	b = binary.BigEndian.AppendUint64(b, h.ID)
	b = binary.BigEndian.AppendUint64(b, uint64(h.Stamp))
	return append(b, c.code(b[start:])...)
}

// Parse reads a hello that arrived at a time of the wall clock.
func (c *Codec) Parse(b []byte, wall time.Time) (Hello, Refusal) {
	if len(b) < HelloLen || string(b[:4]) != helloMagic || b[4] != helloVersion {
		return Hello{}, NoHello
	}
	body, code := b[:helloBody], b[helloBody:HelloLen]
	if !bytes.Equal(body[8:16], c.group[:]) {
		return Hello{}, OtherGroup
	}
	if !hmac.Equal(c.code(body), code) {
		return Hello{}, BadCode
	}
	h := Hello{
		State: State{
			ID:   binary.BigEndian.Uint64(body[16:]),
			Able: body[5]&flagAble != 0, Owner: body[5]&flagOwner != 0, Leaving: body[5]&flagLeaving != 0,
		},
		Stamp: int64(binary.BigEndian.Uint64(body[24:])),
	}
	if skew := time.Unix(0, h.Stamp).Sub(wall); c.mac != nil && (skew > MaxSkew || skew < -MaxSkew) {
		return Hello{}, BadTime
	}
	return h, Accepted
}

// code authenticates the body of a hello. Without a key it is zero, so that replicas with a key and such without do not
// believe each other.
func (c *Codec) code(body []byte) []byte {
	if c.mac == nil {
		clear(c.sum[:helloCode])
		return c.sum[:helloCode]
	}
	c.mac.Reset()
	c.mac.Write(body)
	return c.mac.Sum(c.sum[:0])[:helloCode]
}

func bit(set bool, flag byte) byte {
	if set {
		return flag
	}
	return 0
}
