// Package serve decides what a TFTP server sends to a client that reads a file, and when (RFC 1350, 2347 to 2349 and
// 7440). It does no I/O and has no clock: its caller brings the client's acknowledgements and the time, and sends what
// it is told to. docs/design/decisions.md has the decisions.
package serve

import (
	"bytes"
	"encoding/binary"
	"strconv"
	"time"
)

// Sizes of a block, in bytes (RFC 1350, RFC 2348).
const (
	DefaultBlock           = 512
	leastBlock, mostBlock  = 8, 65464
	mostWindow, widestBits = 64, 65535
	// anyPath fits into the smallest packets that a path may be limited to: IPv6's 1280, with headers of 52.
	anyPath = 1228
)

// Options are what a client and the server have agreed on.
type Options struct {
	BlockSize int // bytes
	Window    int // blocks (RFC 7440)
	// Repeat is the longest time after which a block is repeated, as the client wants it; 0 is no wish.
	Repeat time.Duration
	// OACK is the server's answer to the options (RFC 2347); nil where it takes none of them, and begins with the first
	// block.
	OACK []byte
}

// opOACK is the opcode of RFC 2347.
const opOACK = 6

// Agree answers the options of a request for a file of so many bytes. A block of more than
// anyPath bytes is bounded by what fits says. A value that no server can take leaves its option out, as does an option
// that is not known.
//
// The option timeout is not acknowledged: it would promise to wait for so many seconds before a block is repeated
// (RFC 2349), where the round trip is known to be shorter. What the client asks for only bounds the wait.
func Agree(each func(option func(name, value []byte)), size int64, fits func() int) Options {
	o := Options{BlockSize: DefaultBlock, Window: 1}
	oack := binary.BigEndian.AppendUint16(nil, opOACK)
	taken := map[string]bool{}
	each(func(name, value []byte) {
		key := string(bytes.ToLower(name))
		n, err := strconv.ParseUint(string(value), 10, 63)
		if err != nil || taken[key] {
			return
		}
		var answer uint64
		switch key {
		case "blksize":
			if n < leastBlock || n > mostBlock {
				return
			}
			if o.BlockSize = int(n); o.BlockSize > anyPath {
				o.BlockSize = min(o.BlockSize, max(fits(), anyPath))
			}
			answer = uint64(o.BlockSize)
		case "windowsize":
			if n < 1 || n > widestBits {
				return
			}
			o.Window = min(int(n), mostWindow)
			answer = uint64(o.Window)
		case "tsize":
			answer = uint64(size)
		case "timeout":
			if n >= 1 && n <= 255 {
				o.Repeat = time.Duration(n) * time.Second
			}
			return
		default:
			return
		}
		taken[key] = true
		oack = append(append(oack, name...), 0)
		oack = append(strconv.AppendUint(oack, answer, 10), 0)
	})
	if len(taken) > 0 {
		o.OACK = oack
	}
	return o
}
