package tftp

import (
	"bytes"
	"encoding/binary"
	"strconv"
)

// Opcodes of RFC 1350 section 5 and RFC 2347.
const (
	opRead  = 1
	opWrite = 2
	opData  = 3
	opAck   = 4
	opError = 5
	opOack  = 6
)

// Error codes of RFC 1350.
const (
	errOther      = 0
	errAccess     = 2
	errIllegal    = 4
	errUnknownTID = 5
)

// defaultBlock is the block size without a negotiation, in bytes (RFC 1350 section 2).
const defaultBlock = 512

// headerSize is the opcode and the block number of DATA and ACK.
const headerSize = 4

// opcode is the kind of a datagram; ok is false when it is too short to have one.
func opcode(b []byte) (op uint16, ok bool) {
	if len(b) < 2 {
		return 0, false
	}
	return binary.BigEndian.Uint16(b), true
}

// blockNumber is the number in a DATA or an ACK.
func blockNumber(b []byte) (n uint16, ok bool) {
	if len(b) < headerSize {
		return 0, false
	}
	return binary.BigEndian.Uint16(b[2:]), true
}

// request is a read or write request, as views of its datagram.
type request struct {
	op         uint16
	file, mode []byte
	options    []byte // name, NUL, value, NUL, ...
}

// parseRequest reads an RRQ or WRQ. It refuses only a datagram that is no request at all: the server checks the rest,
// and some firmware leaves out the last NUL.
func parseRequest(b []byte) (request, bool) {
	op, ok := opcode(b)
	if !ok || op != opRead && op != opWrite {
		return request{}, false
	}
	file, rest, ok := bytes.Cut(b[2:], []byte{0})
	if !ok || len(file) == 0 {
		return request{}, false
	}
	mode, options, _ := bytes.Cut(rest, []byte{0})
	if len(mode) == 0 {
		return request{}, false
	}
	return request{op: op, file: file, mode: mode, options: options}, true
}

// eachOption calls f with the options of a request or an OACK (RFC 2347).
func eachOption(options []byte, f func(name, value []byte)) {
	for len(options) > 0 {
		name, rest, ok := bytes.Cut(options, []byte{0})
		if !ok || len(name) == 0 {
			return
		}
		value, after, _ := bytes.Cut(rest, []byte{0})
		f(name, value)
		options = after
	}
}

// negotiated has the options of an OACK that the proxy needs.
type negotiated struct {
	blockSize int    // bytes (RFC 2348)
	window    int    // blocks (RFC 7440)
	size      uint64 // bytes of the file (RFC 2349); 0 unknown
}

// parseOack reads an OACK.
func parseOack(b []byte) negotiated {
	n := negotiated{blockSize: defaultBlock, window: 1}
	if len(b) < 2 {
		return n
	}
	eachOption(b[2:], func(name, value []byte) {
		v, err := strconv.ParseUint(string(value), 10, 64)
		if err != nil || v == 0 {
			return
		}
		switch {
		case bytes.EqualFold(name, []byte("tsize")):
			n.size = v
		case v > 1<<16-1:
		case bytes.EqualFold(name, []byte("blksize")) && v >= 8:
			n.blockSize = int(v)
		case bytes.EqualFold(name, []byte("windowsize")):
			n.window = int(v)
		}
	})
	return n
}

// optionText writes options as "blksize=1468 tsize=0" for a log line, cut to a sane length.
func optionText(options []byte) string {
	var text []byte
	eachOption(options, func(name, value []byte) {
		if len(text) > maxText {
			return
		}
		if len(text) > 0 {
			text = append(text, ' ')
		}
		text = append(text, bytes.ToLower(clip(name))...)
		text = append(text, '=')
		text = append(text, clip(value)...)
	})
	return string(clip(text))
}

// maxText bounds a client's text in the log, in bytes.
const maxText = 255

func clip(b []byte) []byte { return b[:min(len(b), maxText)] }

// errorPacket builds an ERROR.
func errorPacket(code uint16, message string) []byte {
	b := binary.BigEndian.AppendUint16(nil, opError)
	b = binary.BigEndian.AppendUint16(b, code)
	b = append(b, message...)
	return append(b, 0)
}

var (
	strangerError = errorPacket(errUnknownTID, "unknown transfer ID")
	writeError    = errorPacket(errAccess, "writes are not allowed here")
	modeError     = errorPacket(errIllegal, "ask for this file in mode octet (binary)")
	readError     = errorPacket(errOther, "failed to read the file")
)
