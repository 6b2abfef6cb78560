package boot

import (
	"encoding/binary"
	"errors"
	"unsafe"
)

// version begins every encoded event, and changes with Event's fields. Programs of one pod come from one image, or from
// images that are replaced together: another version is refused, not read.
const version = 2

const (
	// headSize is what comes before an event's words: the version, and a bit for each word that there is.
	headSize = 1 + 4
	// wordCount is how many words the fields before the texts take.
	wordCount = unsafe.Offsetof(Event{}.text) / 8
	// MaxBinary is the most bytes that an encoded event takes.
	MaxBinary = headSize + int(wordCount)*8 + TextRoom
)

var errEvent = errors.New("not an event")

// words are the fields before the texts, as they are in memory.
func (e *Event) words() *[wordCount]uint64 { return (*[wordCount]uint64)(unsafe.Pointer(e)) }

// AppendBinary appends the encoding of an event, which takes [MaxBinary] bytes at most: those of its words that are not
// zero, as most are, and its texts. It is little-endian on every architecture that there are images for.
func (e *Event) AppendBinary(b []byte) []byte {
	head, has := len(b), uint32(0)
	b = append(b, version, 0, 0, 0, 0)
	for i, word := range e.words() {
		if word != 0 {
			has |= 1 << i
			b = binary.LittleEndian.AppendUint64(b, word)
		}
	}
	binary.LittleEndian.PutUint32(b[head+1:], has)
	return append(b, e.text[:e.ends[fields-1]]...)
}

// Decode reads the event that b begins with, and returns what is behind it: several events may follow each other. With
// an error, the event is empty.
func (e *Event) Decode(b []byte) (rest []byte, err error) {
	e.Reset()
	if len(b) < headSize || b[0] != version {
		return nil, errEvent
	}
	has, rest := binary.LittleEndian.Uint32(b[1:]), b[headSize:]
	words := e.words()
	for i := range words {
		if has&(1<<i) == 0 {
			continue
		}
		if len(rest) < 8 {
			clear(words[:])
			return nil, errEvent
		}
		words[i], rest = binary.LittleEndian.Uint64(rest), rest[8:]
	}
	if has>>wordCount != 0 || !e.valid() || len(rest) < int(e.ends[fields-1]) {
		clear(words[:])
		return nil, errEvent
	}
	return rest[copy(e.text[:e.ends[fields-1]], rest):], nil
}

// valid reports whether the words are those of an event.
func (e *Event) valid() bool {
	for f := range fields - 1 {
		if e.ends[f] > e.ends[f+1] {
			return false
		}
	}
	fixed := e.bytes(unsafe.Offsetof(e.text))
	return e.ends[fields-1] <= TextRoom && e.Kind >= DHCPRequest && e.Kind <= Syslog && e.Outcome <= Dropped &&
		fixed[unsafe.Offsetof(e.V6)] <= 1 && fixed[unsafe.Offsetof(e.HasArch)] <= 1
}
