package tftp

import (
	"bytes"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

func TestParseRequest(t *testing.T) {
	type parsed struct{ File, Mode, Options string }
	for _, tt := range []struct {
		name, in string
		want     parsed
		ok       bool
	}{
		{"RFC 1350", "\x00\x01f\x00octet\x00", parsed{"f", "octet", ""}, true},
		{"options", "\x00\x02f\x00netascii\x00BlkSize\x001468\x00tsize\x000\x00",
			parsed{"f", "netascii", "blksize=1468 tsize=0"}, true},
		{"last NUL missing", "\x00\x01f\x00octet\x00blksize\x001468", parsed{"f", "octet", "blksize=1468"}, true},
		{"mode unterminated", "\x00\x01f\x00octet", parsed{"f", "octet", ""}, true},
		{"option without value", "\x00\x01f\x00octet\x00blksize", parsed{"f", "octet", ""}, true},
		{"padding", "\x00\x01f\x00octet\x00\x00\x00\x00", parsed{"f", "octet", ""}, true},
		{"no mode", "\x00\x01f\x00", parsed{}, false},
		{"no file", "\x00\x01\x00octet\x00", parsed{}, false},
		{"unterminated", "\x00\x01file", parsed{}, false},
		{"not a request", "\x00\x03f\x00octet\x00", parsed{}, false},
		{"short", "\x00", parsed{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, ok := parseRequest([]byte(tt.in))
			got := parsed{string(r.file), string(r.mode), optionText(r.options)}
			if diff := cmp.Diff(tt.want, got); diff != "" || ok != tt.ok {
				t.Errorf("parsed %v, want %v (-want +got):\n%s", ok, tt.ok, diff)
			}
		})
	}
}

func TestParseOack(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want negotiated
	}{
		{"\x00\x06", negotiated{512, 1, 0}},
		{"\x00\x06blksize\x0065464\x00windowsize\x0016\x00tsize\x005\x00", negotiated{65464, 16, 5}},
		{"\x00\x06BLKSIZE\x001428", negotiated{1428, 1, 0}},
		{"\x00\x06blksize\x000\x00windowsize\x0099999\x00", negotiated{512, 1, 0}},
		{"\x00\x06blksize\x00x\x00", negotiated{512, 1, 0}},
		{"", negotiated{512, 1, 0}},
	} {
		if diff := cmp.Diff(tt.want, parseOack([]byte(tt.in)), cmp.AllowUnexported(negotiated{})); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.in, diff)
		}
	}
}

func TestUnwrap(t *testing.T) {
	for _, tt := range []struct {
		high uint64
		n    uint16
		want uint64
	}{
		{0, 1, 1},
		{5, 5, 5},
		{5, 4, 4},
		{65535, 0, 65536},
		{65535, 1, 65537}, // a server that skips 0 is one block off
		{65536, 65535, 65535},
		{3 * 65536, 2, 3*65536 + 2},
		{0, math.MaxUint16, 0},
	} {
		if got := unwrap(tt.high, tt.n); got != tt.want {
			t.Errorf("unwrap(%d, %d) = %d, want %d", tt.high, tt.n, got, tt.want)
		}
	}
}

// A transfer of 40 MiB in blocks of 512 bytes passes the end of the block counter once.
func TestTransferBeyondTheCounter(t *testing.T) {
	r, _ := parseRequest(rrq("big"))
	tr := newTransfer(rrq("big"), r)
	const blocks = 40 << 20 / 512
	data := make([]byte, headerSize+512)
	for n := 1; n <= blocks; n++ {
		data[1], data[2], data[3] = opData, byte(n>>8), byte(n)
		if tr.observe(opData, data) {
			t.Fatal("ended at a DATA")
		}
		if n%1000 == 0 {
			tr.observe(opData, data) // sent twice
		}
		if tr.observe(opAck, data[:4]) {
			t.Fatalf("ended at block %d", n)
		}
	}
	end := blocks + 1
	last := []byte{0, opData, byte(end >> 8 & 0xff), byte(end & 0xff)}
	tr.observe(opData, last)
	if !tr.observe(opAck, last) {
		t.Error("the last ACK did not complete the transfer")
	}
	if tr.Bytes != 40<<20 || tr.high != uint64(end) || tr.Resent != blocks/1000 {
		t.Errorf("got %d bytes, %d blocks, %d retransmits", tr.Bytes, tr.high, tr.Resent)
	}
}

func FuzzPackets(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		r, ok := parseRequest(b)
		if ok && (len(r.file) == 0 || len(r.mode) == 0) {
			t.Fatalf("a request without file or mode: %q", b)
		}
		if text := optionText(r.options); len(text) > maxText {
			t.Fatalf("%d bytes for the log", len(text))
		}
		if n := parseOack(b); n.blockSize < 8 || n.blockSize > 65535 || n.window < 1 {
			t.Fatalf("negotiated %+v from %q", n, b)
		}
		// The same bytes as a conversation: whatever comes, accounts stay sane.
		tr := newTransfer(b, r)
		for len(b) > 0 {
			n := min(len(b), 4+int(b[0])%16)
			packet := b[:n]
			b = b[n:]
			op, ok := opcode(packet)
			if !ok || !tr.expects(op, datagram.FromServer) && !tr.expects(op, datagram.FromClient) {
				continue
			}
			if _, ok := blockNumber(packet); !ok && op != opOack {
				continue
			}
			high := tr.high
			if op == opError {
				tr.fail(packet)
			} else {
				tr.observe(op, packet)
			}
			if tr.high < high || tr.high-high > 1<<15 || tr.Bytes > tr.high*65535 {
				t.Fatalf("from block %d to %d, %d bytes", high, tr.high, tr.Bytes)
			}
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	r, _ := parseRequest(rrq("big"))
	tr := newTransfer(rrq("big"), r)
	data := append([]byte{0, opData, 0, 0}, bytes.Repeat([]byte{1}, 512)...)
	b.ReportAllocs()
	for n := 1; b.Loop(); n++ {
		data[2], data[3] = byte(n>>8), byte(n)
		tr.observe(opData, data)
		tr.observe(opAck, data[:4])
	}
}
