package frames

import "encoding/binary"

// Kinds of frames, and flags: of those that end a header, and of those with padding (RFC 9113, section 6).
const (
	kindData         = 0
	kindHeaders      = 1
	kindGoAway       = 7
	kindWindowUpdate = 8
	kindContinuation = 9

	flagEndHeaders = 0x4
	flagPadded     = 0x8
)

// mostPadding is how long a frame may be that holds nothing but padding and its length, in bytes.
const mostPadding = 256

// frameHeader is the length of a frame's header, in bytes.
const frameHeader = 9

// frame is a frame's header.
type frame struct {
	length uint32 // of the payload
	kind   uint8
	flags  uint8
	stream uint32
}

// scanner finds the frames in one direction of a connection, in whatever pieces they pass.
type scanner struct {
	frame frame // the last one that began
	left  uint32
	head  [frameHeader]byte // of the next one, as far as it has come
	have  int
}

// next takes bytes to the end of the next frame's header; ok is false where they hold none.
func (s *scanner) next(b []byte) (f frame, rest []byte, ok bool) {
	if skip := min(s.left, uint32(len(b))); skip > 0 {
		s.left -= skip
		b = b[skip:]
	}
	n := copy(s.head[s.have:], b)
	if s.have += n; s.have < frameHeader {
		return f, nil, false
	}
	s.have = 0
	s.frame = frame{
		length: uint32(s.head[0])<<16 | uint32(s.head[1])<<8 | uint32(s.head[2]), kind: s.head[3], flags: s.head[4],
		stream: binary.BigEndian.Uint32(s.head[5:]) & mostStream,
	}
	s.left = s.frame.length
	return s.frame, b[n:], true
}
