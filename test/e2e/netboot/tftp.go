package netboot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// Opcodes of RFC 1350 and RFC 2347.
const (
	opRead  = 1
	opData  = 3
	opAck   = 4
	opError = 5
	opOack  = 6
)

// BlockSize is what the client asks for: as much as fits a frame (RFC 2348).
const BlockSize = 1468

// maxFile bounds what a server can make the client hold.
const maxFile = 64 << 20

// ReadFile reads a file by TFTP over conn, which is connected to port 69 of the server: the kernel then drops what
// comes from anywhere else, as a firewall in front of a machine would. It asks for block and transfer size.
func ReadFile(ctx context.Context, conn net.Conn, name string) ([]byte, error) {
	return ReadFileFunc(ctx, conn, name, func(int) {})
}

// ReadFileFunc is [ReadFile], and calls moved with the bytes of each block that is new.
func ReadFileFunc(ctx context.Context, conn net.Conn, name string, moved func(bytes int)) ([]byte, error) {
	var content []byte
	err := ReadBlocks(ctx, conn, name, func(block []byte) error {
		content = append(content, block...)
		moved(len(block))
		return nil
	}, func() {})
	if err != nil {
		return nil, err
	}
	return content, nil
}

// ReadBlocks does the same and keeps nothing: it calls data with each block, whose error ends the transfer, and again
// before a datagram is sent again because no answer came.
func ReadBlocks(
	ctx context.Context, conn net.Conn, name string, data func(block []byte) error, again func(),
) error {
	request := []byte{0, opRead}
	for _, word := range []string{name, "octet", "blksize", strconv.Itoa(BlockSize), "tsize", "0"} {
		request = append(append(request, word...), 0)
	}
	t := transfer{conn: conn, last: request, size: 512, total: -1, data: data, again: again}
	if err := t.run(ctx); err != nil {
		return fmt.Errorf("failed to read %s from %s by TFTP after %d bytes: %w", name, conn.RemoteAddr(), t.got, err)
	}
	return nil
}

type transfer struct {
	conn  net.Conn
	last  []byte // what to send again
	size  int    // of a block
	total int    // as the server said, or -1
	block uint16 // the last one received
	got   int    // bytes
	data  func(block []byte) error
	again func()
}

func (t *transfer) run(ctx context.Context) error {
	buffer := make([]byte, maxFrame)
	defer interrupt(ctx, t.conn)()
	for wait := time.Second; ; {
		if _, err := t.conn.Write(t.last); err != nil {
			return err
		}
		if err := t.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no answer: %w", context.Cause(ctx))
		}
		n, err := t.conn.Read(buffer)
		if ctx.Err() != nil {
			return fmt.Errorf("no answer: %w", context.Cause(ctx))
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			wait = min(2*wait, longestWait)
			t.again()
			continue
		}
		if err != nil {
			return err
		}
		wait = time.Second
		done, err := t.receive(buffer[:n])
		if err != nil {
			return err
		}
		if done {
			_, err := t.conn.Write(t.last) // the last acknowledgement
			return err
		}
	}
}

// receive takes a datagram and sets what to answer.
func (t *transfer) receive(b []byte) (done bool, err error) {
	if len(b) < 4 {
		return false, fmt.Errorf("got %d bytes", len(b))
	}
	switch number := binary.BigEndian.Uint16(b[2:]); b[1] {
	case opOack:
		if err := t.options(b[2:]); err != nil {
			return false, err
		}
		t.last = []byte{0, opAck, 0, 0}
		return false, nil
	case opData:
		data := b[4:]
		if number != t.block+1 {
			return false, nil // again what was there already
		}
		if len(data) > t.size {
			return false, fmt.Errorf("block %d has %d bytes, agreed were %d", number, len(data), t.size)
		}
		if t.got+len(data) > maxFile {
			return false, fmt.Errorf("more than %d bytes", maxFile)
		}
		t.block = number
		t.got += len(data)
		if err := t.data(data); err != nil {
			return false, err
		}
		t.last = []byte{0, opAck, b[2], b[3]}
		done = len(data) < t.size
		if done && t.total >= 0 && t.got != t.total {
			return false, fmt.Errorf("got %d bytes, the server announced %d", t.got, t.total)
		}
		return done, nil
	case opError:
		text, _, _ := bytes.Cut(b[4:], []byte{0})
		return false, fmt.Errorf("server says: error %d: %s", number, text)
	default:
		return false, fmt.Errorf("got opcode %d", b[1])
	}
}

// options reads the option acknowledgement of RFC 2347.
func (t *transfer) options(b []byte) error {
	words := bytes.Split(bytes.TrimSuffix(b, []byte{0}), []byte{0})
	for i := 0; i+1 < len(words); i += 2 {
		value, err := strconv.Atoi(string(words[i+1]))
		if err != nil {
			return fmt.Errorf("option %s is %q", words[i], words[i+1])
		}
		switch name := string(bytes.ToLower(words[i])); name {
		case "blksize":
			if value < 8 || value > BlockSize {
				return fmt.Errorf("block size is %d, asked was for %d", value, BlockSize)
			}
			t.size = value
		case "tsize":
			t.total = value
		default:
			return fmt.Errorf("option %s was not asked for", name)
		}
	}
	return nil
}
