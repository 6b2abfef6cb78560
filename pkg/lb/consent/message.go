package consent

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
)

// EtherType is that of the messages: IEEE 802 has set it aside for experiments and private use within a network.
const EtherType = 0x88b5

// Kind is what a message is for.
type Kind uint8

// The kinds.
const (
	// Who asks who is there; an answer to it promises nothing.
	Who Kind = iota + 1
	// Ask asks for consent.
	Ask
	// Here answers Who, and Consents answers Ask, with leases of the sender's that go by what was asked.
	Here
	Consents
)

// Nonce tells a challenge from all others.
type Nonce [16]byte

// ID is a lease.
type ID [8]byte

// IDOf is the ID of a lease by its name.
func IDOf(name string) ID {
	sum := sha256.Sum256([]byte(name))
	return ID(sum[:8])
}

// Message is one frame's.
type Message struct {
	Kind  Kind
	Nonce Nonce
	// Boot identifies the process that sends, and Count grows with each of its challenges: a message with an old Count
	// was recorded.
	Boot, Count uint64
	// From is the identity of the holder that asks, or the name of the node that answers.
	From string
	// Leases are those to which an answer applies.
	Leases []ID
}

// The bytes of a message, behind the Ethernet header; others may follow, since frames have a least length:
//
//	magic (4) | version (1) | kind (1) | len of from (1) | count of leases (1) | nonce (16) | boot (8) | count (8) |
//	from | leases (8 each) | HMAC-SHA-256 (first 16)
const (
	magic   = "stlb"
	version = 1
	fixed   = 40
	code    = 16

	// MaxLeases and MaxFrom are the most that a message has.
	MaxLeases = 128
	MaxFrom   = 255
	// MaxLen is the most bytes of a message.
	MaxLen = fixed + MaxFrom + 8*MaxLeases + code
)

// ErrForged is of a message with another key than ours.
var ErrForged = errors.New("it is not signed with our key")

// Codec writes and reads the messages of nodes that have the same key and group.
type Codec struct{ key []byte }

// NewCodec makes a codec. The group keeps two installations with one key apart.
func NewCodec(group string, key []byte) *Codec {
	// Not the key itself: it may sign other things, which must not be taken for messages.
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("stack-lb consent\x00" + group))
	return &Codec{key: mac.Sum(nil)}
}

// Append appends a message.
func (c *Codec) Append(b []byte, m Message) []byte {
	start := len(b)
	b = append(b, magic...)
	b = append(b, version, byte(m.Kind), byte(len(m.From)), byte(len(m.Leases)))
	b = append(b, m.Nonce[:]...)
	b = binary.BigEndian.AppendUint64(b, m.Boot)
	b = binary.BigEndian.AppendUint64(b, m.Count)
	b = append(b, m.From...)
	for _, id := range m.Leases {
		b = append(b, id[:]...)
	}
	return append(b, c.sign(b[start:])...)
}

// Parse reads a message. ok is false for what is none of this protocol; the error is ErrForged.
func (c *Codec) Parse(b []byte) (m Message, ok bool, err error) {
	if len(b) < fixed || !bytes.HasPrefix(b, []byte(magic)) || b[4] != version {
		return Message{}, false, nil
	}
	kind, from, leases := Kind(b[5]), int(b[6]), int(b[7])
	body := fixed + from + 8*leases
	if kind < Who || kind > Consents || leases > MaxLeases || len(b) < body+code {
		return Message{}, false, nil
	}
	if !hmac.Equal(b[body:body+code], c.sign(b[:body])) {
		return Message{}, true, ErrForged
	}
	m = Message{
		Kind: kind, Nonce: Nonce(b[8:24]), Boot: binary.BigEndian.Uint64(b[24:]), Count: binary.BigEndian.Uint64(b[32:]),
		From: string(b[fixed : fixed+from]),
	}
	for chunk := range slices.Chunk(b[fixed+from:body], 8) {
		m.Leases = append(m.Leases, ID(chunk))
	}
	return m, true, nil
}

func (c *Codec) sign(body []byte) []byte {
	mac := hmac.New(sha256.New, c.key)
	mac.Write(body)
	return mac.Sum(nil)[:code]
}

// Memory tells challenges from recorded ones: that of a process has to have a higher count than all before.
type Memory struct{ last map[uint64]uint64 }

// maxMemory bounds how many processes are remembered.
const maxMemory = 256

// Fresh reports whether a challenge is none that was heard before.
func (m *Memory) Fresh(boot, count uint64) bool {
	if count <= m.last[boot] {
		return false
	}
	if m.last == nil || len(m.last) >= maxMemory {
		m.last = map[uint64]uint64{}
	}
	m.last[boot] = count
	return true
}
