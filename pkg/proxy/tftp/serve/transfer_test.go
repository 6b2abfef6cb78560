package serve

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// each calls option with the pairs of a text "blksize=1468 tsize=0".
func each(text string) func(option func(name, value []byte)) {
	return func(option func(name, value []byte)) {
		for pair := range strings.FieldsSeq(text) {
			name, value, _ := strings.Cut(pair, "=")
			option([]byte(name), []byte(value))
		}
	}
}

func TestAgree(t *testing.T) {
	for _, tt := range []struct {
		id, asked   string
		size        int64
		path        int // bytes; 0 is 1468
		oack        string
		block, wide int
	}{
		{id: "T02", asked: "", block: 512, wide: 1},
		{id: "T02", asked: "utimeout=100 rollover=0 blksize2=1024 msftwindow=31416 x=y", block: 512, wide: 1},
		{id: "T03", asked: "BlkSize=1400 TSIZE=0 windowsize=4 foo=bar", size: 9,
			oack: "BlkSize 1400 TSIZE 9 windowsize 4 ", block: 1400, wide: 4},
		{id: "T03", asked: "blksize=600 blksize=700", oack: "blksize 600 ", block: 600, wide: 1},
		{id: "T04", asked: "tsize=0", size: 52, oack: "tsize 52 ", block: 512, wide: 1},
		{id: "T06", asked: "tsize=5", size: 3 << 20, oack: "tsize 3145728 ", block: 512, wide: 1},
		{id: "T06", asked: "tsize=-1", size: 3, block: 512, wide: 1},
		{id: "T06", asked: "tsize=99999999999999999999", size: 3, block: 512, wide: 1},
		{id: "T06", asked: "tsize=0", size: 1<<32 + 1, oack: "tsize 4294967297 ", block: 512, wide: 1},
		{id: "T09", asked: "blksize=8", oack: "blksize 8 ", block: 8, wide: 1},
		{id: "T09", asked: "blksize=7", block: 512, wide: 1},
		{id: "T09", asked: "blksize=65465", block: 512, wide: 1},
		{id: "T09", asked: "blksize=-512", block: 512, wide: 1},
		{id: "T09", asked: "blksize=512x", block: 512, wide: 1},
		{id: "T09", asked: "blksize=", block: 512, wide: 1},
		{id: "T10", asked: "blksize=65464", oack: "blksize 1468 ", block: 1468, wide: 1},
		{id: "T10", asked: "blksize=1456", oack: "blksize 1456 ", block: 1456, wide: 1},
		{id: "T10", asked: "blksize=65464", path: 65503, oack: "blksize 65464 ", block: 65464, wide: 1},
		{id: "T11", asked: "blksize=1468", path: 1368, oack: "blksize 1368 ", block: 1368, wide: 1},
		{id: "T11", asked: "blksize=1468", path: -32, oack: "blksize 1228 ", block: 1228, wide: 1},
		{id: "T12", asked: "windowsize=64", oack: "windowsize 64 ", block: 512, wide: 64},
		{id: "T12", asked: "windowsize=65535", oack: "windowsize 64 ", block: 512, wide: 64},
		{id: "T12", asked: "windowsize=0", block: 512, wide: 1},
		{id: "T12", asked: "windowsize=65536", block: 512, wide: 1},
		{id: "T19", asked: "timeout=5", block: 512, wide: 1},
	} {
		t.Run(tt.asked, func(t *testing.T) {
			o := Agree(each(tt.asked), tt.size, func() int {
				if tt.path != 0 {
					return tt.path
				}
				return 1468
			})
			got := fmt.Sprint(o.BlockSize, o.Window, strings.ReplaceAll(string(o.OACK), "\x00", " "))
			want := fmt.Sprint(tt.block, tt.wide, "")
			if tt.oack != "" {
				want = fmt.Sprint(tt.block, tt.wide, " \x06"+tt.oack)
			}
			if got != want {
				t.Errorf("%s: got %q, want %q", tt.id, got, want)
			}
		})
	}
}

// A play is lines of what happens at a time in milliseconds: "10 ack 4", "due" (at the time that the transfer says),
// "request" (repeated), and after ": " what is to follow.
func TestTransfer(t *testing.T) {
	const block = 512
	for _, tt := range []struct {
		id, name string
		blocks   int64
		window   int
		oack     bool
		play     string
	}{
		{id: "T01", name: "one block", blocks: 1, window: 1, play: `
			0 start: 1-1
			1 ack 1: complete`},
		{id: "T01", name: "lockstep", blocks: 3, window: 1, oack: true, play: `
			0 start: oack
			1 ack 0: 1-1
			2 ack 1: 2-2
			3 ack 2: 3-3
			4 ack 3: complete`},
		{id: "T13", name: "windows are sent whole", blocks: 10, window: 4, oack: true, play: `
			0 start: oack
			1 ack 0: 1-4
			2 ack 4: 5-8
			3 ack 8: 9-10
			4 ack 10: complete`},
		{id: "T14", name: "a block lost inside of a window", blocks: 12, window: 4, oack: true, play: `
			0 start: oack
			1 ack 0: 1-4
			2 ack 4: 5-8
			3 ack 5: 6-9
			3 ack 5: nothing
			4 ack 9: 10-12
			5 ack 12: complete`},
		{id: "T15", name: "the first block of a window lost, and no word of it", blocks: 32, window: 16, oack: true, play: `
			0 start: oack
			1 ack 0: 1-16
			51 due: 1-16
			52 ack 16: 17-32
			53 ack 32: complete`},
		{id: "T17", name: "duplicates' ACKs start nothing", blocks: 32, window: 8, oack: true, play: `
			0 start: oack
			5 ack 0: 1-8
			55 due: 1-8
			60 ack 8: 9-16
			61 ack 8: nothing
			62 ack 8: nothing
			65 ack 16: 17-24`},
		{id: "T18", name: "each ACK twice", blocks: 3, window: 1, oack: true, play: `
			0 start: oack
			1 ack 0: 1-1
			4 ack 0: nothing
			5 ack 1: 2-2
			8 ack 1: nothing
			9 ack 2: 3-3
			12 ack 2: nothing
			13 ack 3: complete`},
		{id: "T18", name: "a repeated ACK asks for the block once in 100 ms", blocks: 3, window: 1, oack: true, play: `
			0 start: oack
			1 ack 0: 1-1
			501 ack 1: 2-2
			602 ack 1: 2-2
			603 ack 1: nothing
			604 ack 2: 3-3`},
		{id: "T19", name: "the OACK lost, and its ACK", blocks: 1, window: 1, oack: true, play: `
			0 start: oack
			1000 due: oack
			3000 due: oack
			3001 ack 0: 1-1
			3002 ack 1: complete`},
		{id: "T19", name: "the last ACK lost", blocks: 2, window: 1, oack: true, play: `
			0 start: oack
			10 ack 0: 1-1
			20 ack 1: 2-2
			70 due: 2-2
			170 due: 2-2
			370 due: 2-2
			770 due: 2-2
			1570 due: complete`},
		{id: "T20", name: "the request repeated before an answer came", blocks: 2, window: 1, oack: true, play: `
			0 start: oack
			500 request: oack
			501 ack 0: 1-1
			502 request: none`},
		{id: "T22", name: "ACKs of past and future, and inside of the window", blocks: 100, window: 8, oack: true, play: `
			0 start: oack
			0 ack 5: nothing
			1 ack 0: 1-8
			2 ack 8: 9-16
			3 ack 4: nothing
			3 ack 17: nothing
			3 ack 65535: nothing
			3 ack 0: nothing
			4 ack 12: 13-20
			5 ack 12: nothing
			6 ack 11: nothing
			200 ack 12: 13-20`},
		{id: "T30", name: "a client that never answers an OACK", blocks: 100, window: 64, oack: true, play: `
			0 start: oack
			1000 due: oack
			3000 due: oack
			7000 due: oack
			15000 due: give up`},
		{id: "T30", name: "a client that never acknowledges a first block", blocks: 100, window: 1, play: `
			0 start: 1-1
			1000 due: 1-1
			3000 due: 1-1
			7000 due: 1-1
			15000 due: give up`},
		{id: "T34", name: "no round trip is taken of a block that was repeated", blocks: 9, window: 1, oack: true, play: `
			0 start: oack
			1 ack 0: 1-1
			51 due: 1-1
			151 due: 1-1
			301 ack 1: 2-2
			501 due: 2-2
			601 ack 2: 3-3
			1001 due: 3-3`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := time.Unix(1000, 0)
			o := Options{BlockSize: block, Window: tt.window}
			if tt.oack {
				o.OACK = []byte{0, 6}
			}
			var x Transfer
			var got []string
			for line := range strings.SplitSeq(strings.TrimSpace(tt.play), "\n") {
				line, _, _ = strings.Cut(strings.TrimSpace(line), ":")
				var ms, n int
				var verb string
				_, _ = fmt.Sscan(line, &ms, &verb, &n)
				now := start.Add(time.Duration(ms) * time.Millisecond)
				action, known := Nothing, true
				switch verb {
				case "start":
					action = x.Start(o, (tt.blocks-1)*block+1, now)
				case "ack":
					action, _ = x.ACK(uint16(n), now)
				case "request":
					action, known = x.RepeatFirst(now)
				case "due":
					line = fmt.Sprintf("%d due", x.Due().Sub(start).Milliseconds())
					action = x.Timeout(now)
				}
				answer := map[Action]string{Nothing: "nothing", SendOACK: "oack", Complete: "complete", GiveUp: "give up"}[action]
				if action == SendData {
					first, last := x.Span()
					answer = fmt.Sprintf("%d-%d", first, last)
				}
				if !known {
					answer = "none"
				}
				got = append(got, line+": "+answer)
			}
			var want []string
			for line := range strings.SplitSeq(strings.TrimSpace(tt.play), "\n") {
				want = append(want, strings.TrimSpace(line))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s: want -, got +:\n%s", tt.id, d)
			}
		})
	}
}

func TestRollover(t *testing.T) {
	for _, window := range []int{1, 4, 64} {
		var x Transfer
		const blocks = 140_000
		now := time.Unix(1000, 0)
		action := x.Start(Options{BlockSize: 512, Window: window}, (blocks-1)*512, now)
		next := uint64(1)
		for action == SendData {
			first, last := x.Span()
			if first != next {
				t.Fatalf("window %d: block %d follows, want %d", window, first, next)
			}
			next = last + 1
			now = now.Add(time.Millisecond)
			if a, step := x.ACK(uint16(first-6), now); a != Nothing || step {
				t.Fatalf("window %d: an ACK of the past at %d starts %d", window, first, a)
			}
			action, _ = x.ACK(uint16(last), now)
		}
		if action != Complete || next != blocks+1 {
			t.Errorf("window %d: ended by %d before block %d", window, action, next)
		}
	}
}

// A client that acknowledges nothing is told by them from a server that sent nothing.
func TestFirstAnswersSentAgainAreCounted(t *testing.T) {
	for name, test := range map[string]struct {
		oack []byte
		want uint32
	}{"options": {[]byte{0, 6}, 2}, "a window of four blocks": {nil, 8}} {
		t.Run(name, func(t *testing.T) {
			var x Transfer
			x.Start(Options{BlockSize: 512, Window: 4, OACK: test.oack}, 5120, time.Unix(1, 0))
			for range 2 {
				x.Timeout(x.Due())
			}
			if x.Resent != test.want {
				t.Errorf("%d sent again, want %d", x.Resent, test.want)
			}
		})
	}
}
