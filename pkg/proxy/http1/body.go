package http1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/textproto"
	"strconv"
)

// framing is how an endpoint marks the end of a body (RFC 9112, section 6).
type framing uint8

const (
	byLength framing = iota
	byChunks
	byEnd // of the connection
)

// body reads the body of an answer as it comes, and writes it for the client: with its length, in chunks, or until the
// end of the connection.
type body struct {
	framing  framing
	toChunks bool  // the client gets chunks; whether the endpoint sends them is in framing
	left     int64 // of the length, or of the chunk
	part     part
	line     []byte // the part of a line of chunks that has come
	whole    bool   // the body has ended
	surplus  bool   // there was more behind it: the connection is not used again
}

// part is what comes next of a body in chunks.
type part uint8

const (
	partSize    part = iota // a line with a size
	partData                // as many bytes
	partDataEnd             // the line's end behind them
	partTrailer             // lines, of which the last is empty
)

// mostChunkLine bounds a line with a chunk's size, and a trailer, in bytes.
const mostChunkLine = 4 << 10

var (
	errChunk   = errors.New("the endpoint's chunks are malformed")
	errTrailer = errors.New("the trailer of the endpoint's answer is malformed")
)

// frameBefore and frameBehind are the room for a chunk's frame, in bytes: enough, and so that the data between begins
// at a line of the processor's cache, for which the kernel copies faster.
const frameBefore, frameBehind = 64, 2

// take reads what has arrived of a body, which it may write over; the data begins at b[0] afterwards.
func (y *body) take(b []byte) (data []byte, err error) {
	switch y.framing {
	case byEnd:
		return b, nil
	case byLength:
		if int64(len(b)) > y.left {
			b, y.surplus = b[:y.left], true
		}
		y.left -= int64(len(b))
		y.whole = y.left == 0
		return b, nil
	default:
		return y.takeChunks(b)
	}
}

// takeChunks moves the data of chunks together.
func (y *body) takeChunks(b []byte) (data []byte, err error) {
	n := 0
	for at := 0; at < len(b); { // what is between n and at was read
		switch {
		case y.whole:
			y.surplus = true
			return b[:n], nil
		case y.part == partData:
			some := int(min(y.left, int64(len(b)-at)))
			copy(b[n:], b[at:at+some])
			n, at, y.left = n+some, at+some, y.left-int64(some)
			if y.left == 0 {
				y.part = partDataEnd
			}
		default:
			end := bytes.IndexByte(b[at:], '\n')
			some := b[at:]
			if end >= 0 {
				some = b[at : at+end+1]
			}
			at += len(some)
			y.line = append(y.line, some...)
			if len(y.line) > mostChunkLine {
				return b[:n], errChunk
			}
			if end >= 0 {
				if err := y.takeLine(); err != nil {
					return b[:n], err
				}
			}
		}
	}
	return b[:n], nil
}

// takeLine reads a line that is not data.
func (y *body) takeLine() error {
	if y.part == partTrailer {
		y.whole = bytes.Equal(y.line, crlf) || bytes.HasSuffix(y.line, []byte("\r\n\r\n"))
		return nil
	}
	text, ok := bytes.CutSuffix(y.line, crlf)
	y.line = y.line[:0]
	switch {
	case !ok, bytes.IndexByte(text, '\r') >= 0, y.part == partDataEnd && len(text) > 0:
		return errChunk
	case y.part == partDataEnd:
		y.part = partSize
		return nil
	}
	text, _, _ = bytes.Cut(bytes.TrimRight(text, " \t"), []byte(";")) // an extension
	size, err := strconv.ParseUint(string(text), 16, 63)
	if err != nil || len(text) > 16 || !hexDigit(text[0]) {
		return errChunk
	}
	y.left, y.part = int64(size), partData
	if size == 0 {
		y.part = partTrailer
	}
	return nil
}

// frame puts a frame around data for the client. There must be room for it in the buffer, before the data and behind.
func (y *body) frame(buffer []byte, from, n int) []byte {
	if !y.toChunks || n == 0 {
		return buffer[from : from+n]
	}
	var digits [8]byte
	size := strconv.AppendUint(digits[:0], uint64(n), 16)
	begin := from - len(size) - len(crlf)
	copy(buffer[begin:], size)
	copy(buffer[from-len(crlf):], crlf)
	copy(buffer[from+n:], crlf)
	return buffer[begin : from+n+len(crlf)]
}

// appendEnd appends what the client gets behind the data: the last chunk, and the trailer where there is one.
func (y *body) appendEnd(b []byte) ([]byte, error) {
	if !y.toChunks {
		return b, nil
	}
	b = append(b, "0\r\n"...)
	if y.framing == byChunks && !bytes.Equal(y.line, crlf) {
		trailer, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(y.line))).ReadMIMEHeader()
		if err != nil {
			return b, fmt.Errorf("%w: %w", errTrailer, err)
		}
		maps.DeleteFunc(trailer, func(name string, _ []string) bool { return MeaningOf(name) != Pass })
		b = appendLines(b, linesOf(nil, trailer))
	}
	return append(b, crlf...), nil
}
