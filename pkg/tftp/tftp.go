// Package tftp asks for files by TFTP as firmware does, and says what became of each question. It reads as much of a
// file as it is told, and ends what it began: a server is never left waiting.
package tftp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"
)

// Ask is a question for a file.
type Ask struct {
	File   string
	Block  int // option blksize (RFC 2348); 0: not asked for, blocks have 512 bytes
	Window int // option windowsize (RFC 7440); 0: not asked for
	Size   bool
	// Most is after how many bytes the transfer is ended; 0: as soon as the options are known.
	Most int
}

// Answer is what came of it.
type Answer struct {
	// Options are those of the OACK (RFC 2347), nil where there was none.
	Options map[string]string
	Content []byte // as far as it was read
	Whole   bool
	Size    int64 // as the server says (RFC 2349); -1: not
	Code    int   // of an ERROR; -1: none
	Message string
	From    netip.AddrPort // of the first answer
	Strange netip.Addr     // another address that answered
	Repeats int            // datagrams that had to be sent again
	Began   bool           // something came back
	Err     error          // nil: all that was asked for is there
}

// What an ask may end with besides the server's own errors.
var (
	ErrSilent  = errors.New("no answer")
	ErrStalled = errors.New("the transfer stalled")
	ErrRefused = errors.New("nothing listens there (port unreachable)")
	errServer  = errors.New("the server answers with an error")
)

// Opcodes of RFC 1350 and RFC 2347.
const (
	opRead  = 1
	opData  = 3
	opAck   = 4
	opError = 5
	opOack  = 6
)

const (
	plainBlock = 512
	maxPacket  = 65536
	// tries is how often a datagram is sent that gets no answer.
	tries = 3
	// aborted ends a transfer whose options were all that was of interest (RFC 2347), as edk2 does.
	aborted = 8
	// served ends a transfer of which enough is there.
	served = 0
)

// Read asks a server. It sends what is unanswered again after a time, at most three times in all.
func Read(ctx context.Context, conn net.PacketConn, server netip.AddrPort, ask Ask, wait time.Duration) Answer {
	t := transfer{conn: conn, server: server, ask: ask, block: plainBlock, window: 1}
	t.Size, t.Code = -1, -1
	if ask.Size || ask.Block > 0 || ask.Window > 0 {
		t.asked = true
	}
	t.Err = t.run(ctx, wait)
	return t.Answer
}

type transfer struct {
	Answer
	conn   net.PacketConn
	server netip.AddrPort
	ask    Ask
	asked  bool // for options
	peer   netip.AddrPort
	block  int
	window int
	last   uint16 // block that is there
	held   int    // blocks of the window that are not acknowledged
	done   bool
}

// expects reports whether a datagram's sender is the transfer's server: RFC 1350 section 4.
func (t *transfer) expects(sender netip.AddrPort) bool {
	if sender.Addr() != t.server.Addr() {
		t.Strange = sender.Addr()
		return false
	}
	return !t.peer.IsValid() || sender == t.peer
}

func (t *transfer) run(ctx context.Context, wait time.Duration) error {
	send, to := t.request(), t.server
	buffer := make([]byte, maxPacket)
	stop := context.AfterFunc(ctx, func() { _ = t.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for try := 1; ; {
		if send != nil {
			if _, err := t.conn.WriteTo(send, net.UDPAddrFromAddrPort(to)); err != nil {
				return refusal(err)
			}
		}
		if t.done {
			return nil
		}
		_ = t.conn.SetReadDeadline(time.Now().Add(wait))
		if ctx.Err() != nil {
			return t.silence()
		}
		n, from, err := t.conn.ReadFrom(buffer)
		if isTimeout(err) {
			if try++; try > tries || ctx.Err() != nil {
				t.end()
				return t.silence()
			}
			t.Repeats++
			send = t.again(send)
			continue
		}
		if err != nil {
			return refusal(err)
		}
		sender := fromAddr(from)
		if !t.expects(sender) {
			send = nil
			continue
		}
		before, first := t.last, !t.Began
		t.peer, t.From, t.Began, to = sender, sender, true, sender
		send, err = t.receive(buffer[:n])
		if err != nil {
			return err
		}
		switch {
		case t.last != before || first:
			try = 1
		case send != nil: // the same came again, as from a server that does not hear the answer
			if try++; try > tries {
				t.end()
				return t.silence()
			}
		}
	}
}

// again is what to send after a time of silence.
func (t *transfer) again(sent []byte) []byte {
	switch {
	case sent != nil:
		return sent
	case t.Began:
		return t.ack()
	}
	return t.request() // a stranger has answered
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout()
}

// refusal is an error of the socket: of ICMP, as a rule.
func refusal(err error) error {
	if strings.Contains(err.Error(), "refused") {
		return ErrRefused
	}
	return fmt.Errorf("failed to talk: %w", err)
}

func (t *transfer) silence() error {
	if t.Began {
		return fmt.Errorf("%w after %d bytes", ErrStalled, len(t.Content))
	}
	return ErrSilent
}

func (t *transfer) request() []byte {
	words := []string{t.ask.File, "octet"}
	if t.ask.Size {
		words = append(words, "tsize", "0")
	}
	if t.ask.Block > 0 {
		words = append(words, "blksize", strconv.Itoa(t.ask.Block))
	}
	if t.ask.Window > 0 {
		words = append(words, "windowsize", strconv.Itoa(t.ask.Window))
	}
	b := []byte{0, opRead}
	for _, word := range words {
		b = append(append(b, word...), 0)
	}
	return b
}

func (t *transfer) ack() []byte { return []byte{0, opAck, byte(t.last >> 8), byte(t.last)} }

// end tells the server that nothing more is wanted.
func (t *transfer) end() {
	if t.peer.IsValid() {
		_, _ = t.conn.WriteTo(append([]byte{0, opError, 0, aborted}, "enough\x00"...), net.UDPAddrFromAddrPort(t.peer))
	}
}

// receive takes a datagram, and says what to answer; nil: nothing yet.
func (t *transfer) receive(b []byte) (answer []byte, err error) {
	if len(b) < 4 {
		return nil, fmt.Errorf("failed to read answer: it has %d bytes", len(b))
	}
	switch b[1] {
	case opOack:
		if err := t.options(b[2:]); err != nil {
			t.end()
			return nil, err
		}
		if t.ask.Most == 0 {
			t.done = true
			return append([]byte{0, opError, 0, aborted}, "enough\x00"...), nil
		}
		return t.ack(), nil
	case opData:
		return t.data(binary.BigEndian.Uint16(b[2:]), b[4:])
	case opError:
		t.Code = int(binary.BigEndian.Uint16(b[2:]))
		text, _, _ := bytes.Cut(b[4:], []byte{0})
		t.Message = string(text)
		return nil, errServer
	default:
		return nil, fmt.Errorf("failed to read answer: it has the opcode %d", b[1])
	}
}

func (t *transfer) data(number uint16, data []byte) (answer []byte, err error) {
	if number != t.last+1 {
		if t.held > 0 || number == t.last {
			t.held = 0
			return t.ack(), nil // RFC 7440 section 4: go on behind what is there
		}
		return nil, nil
	}
	if len(data) > t.block {
		t.end()
		return nil, fmt.Errorf("failed to read block %d: it has %d bytes, agreed were %d", number, len(data), t.block)
	}
	t.last, t.held = number, t.held+1
	t.Content = append(t.Content, data...)
	t.Whole = len(data) < t.block
	switch {
	case t.Whole:
		t.done = true
		return t.ack(), nil
	case len(t.Content) >= t.ask.Most:
		t.done = true
		return append([]byte{0, opError, 0, served}, "enough\x00"...), nil
	case t.held >= t.window:
		t.held = 0
		return t.ack(), nil
	}
	return nil, nil
}

// options reads an OACK.
func (t *transfer) options(b []byte) error {
	words := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	t.Options = map[string]string{}
	for i := 0; i+1 < len(words); i += 2 {
		t.Options[strings.ToLower(words[i])] = words[i+1]
	}
	number := func(name string, asked, least int) (int, error) {
		text, ok := t.Options[name]
		if !ok {
			return 0, nil
		}
		value, err := strconv.Atoi(text)
		if err != nil || asked == 0 || value > asked || value < least {
			return 0, fmt.Errorf("failed to agree: the server says %s %q, asked was %d", name, text, asked)
		}
		return value, nil
	}
	block, err := number("blksize", t.ask.Block, 8)
	if err != nil {
		return err
	}
	window, err := number("windowsize", t.ask.Window, 1)
	if err != nil {
		return err
	}
	if text, ok := t.Options["tsize"]; ok {
		size, err := strconv.ParseInt(text, 10, 64)
		if err != nil || size < 0 {
			return fmt.Errorf("failed to agree: the server says tsize %q", text)
		}
		t.Size = size
	}
	if block > 0 {
		t.block = block
	}
	if window > 0 {
		t.window = window
	}
	return nil
}

// Uninvited names the options of an OACK that were not asked for: edk2 gives such a transfer up.
func (a *Answer) Uninvited(ask Ask) (names []string) {
	for name := range a.Options {
		switch {
		case name == "blksize" && ask.Block > 0, name == "windowsize" && ask.Window > 0, name == "tsize" && ask.Size:
		default:
			names = append(names, name)
		}
	}
	return names
}

// Stuck tells whether nothing came behind the server's first answer: an OACK, or else one block.
func (a *Answer) Stuck() bool {
	return errors.Is(a.Err, ErrStalled) && (len(a.Content) == 0 || a.Options == nil && len(a.Content) == plainBlock)
}

func fromAddr(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := u.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
