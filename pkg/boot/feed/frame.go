package feed

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

const (
	magic      = "stboots1"
	nonceSize  = 16
	codeSize   = 16
	lengthSize = 4
	headSize   = 3 * 8
	// helloMost and bodyMost bound what is read of a frame, in bytes: the first, and those with events.
	helloMost = 512
	bodyMost  = 32 << 10

	// taken and refused answer a frame.
	taken, refused = 0x06, 0x15

	// heartbeat is how often a sender tells that it is there, and silence how long it may be quiet.
	heartbeat, silence = 2 * time.Second, 15 * time.Second
)

var errForged = errors.New("it is not of a program that has the key")

// signer signs the frames of a stream, or checks them: each once, in their order.
type signer struct {
	mac   hash.Hash
	nonce [nonceSize]byte
	count uint64
	code  []byte
}

func newSigner(key []byte, nonce [nonceSize]byte) *signer {
	// Not the key itself: it may sign other things, which must not be taken for frames.
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("stack-boots events"))
	return &signer{mac: hmac.New(sha256.New, mac.Sum(nil)), nonce: nonce}
}

// next is the code of the next frame, valid until the one after it.
func (s *signer) next(body []byte) []byte {
	s.mac.Reset()
	s.mac.Write(s.nonce[:])
	var count [8]byte
	binary.BigEndian.PutUint64(count[:], s.count)
	s.count++
	s.mac.Write(count[:])
	s.mac.Write(body)
	s.code = s.mac.Sum(s.code[:0])
	return s.code[:codeSize]
}

// seal appends the frame with a body.
func (s *signer) seal(b, body []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(body)))
	b = append(b, body...)
	return append(b, s.next(body)...)
}

// read reads a frame into a buffer, which has room for the longest one, and returns its body.
func (s *signer) read(r io.Reader, buffer []byte) (body []byte, err error) {
	if _, err := io.ReadFull(r, buffer[:lengthSize]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(buffer)
	if int64(n)+codeSize > int64(len(buffer)) {
		return nil, errForged
	}
	frame := buffer[:n+codeSize]
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	if !hmac.Equal(s.next(frame[:n]), frame[n:]) {
		return nil, errForged
	}
	return frame[:n], nil
}

// hello names the program that sends.
type hello struct {
	session      [8]byte // of the process
	program, pod string
}

func (h hello) append(b []byte) []byte {
	b = append(b, h.session[:]...)
	for _, text := range []string{h.program, h.pod} {
		text = boot.CleanCut(text, 255)
		b = append(append(b, byte(len(text))), text...)
	}
	return b
}

func parseHello(b []byte) (h hello, ok bool) {
	if len(b) < len(h.session) {
		return h, false
	}
	b = b[copy(h.session[:], b):]
	for _, text := range []*string{&h.program, &h.pod} {
		if len(b) == 0 || len(b) <= int(b[0]) {
			return h, false
		}
		n := int(b[0])
		*text, b = boot.Clean(b[1:1+n]), b[1+n:]
	}
	return h, len(b) == 0
}

// head begins the body of a frame with events.
type head struct {
	number uint64 // of events that the sender had sent before
	lost   uint64 // that it has dropped since the last frame that was taken
	now    int64  // its clock: nanoseconds since 1970; or farewell
}

// farewell in place of the clock is of a program that ends in order: it is no longer waited for.
const farewell = 0

func (h head) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, h.number)
	b = binary.BigEndian.AppendUint64(b, h.lost)
	return binary.BigEndian.AppendUint64(b, uint64(h.now))
}

func parseHead(b []byte) (h head, events []byte, ok bool) {
	if len(b) < headSize {
		return h, nil, false
	}
	h.number, h.lost = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	h.now = int64(binary.BigEndian.Uint64(b[16:]))
	return h, b[headSize:], true
}
