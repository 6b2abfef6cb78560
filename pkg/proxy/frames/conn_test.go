package frames

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/http2"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is a Conn with its client's side.
type peer struct {
	server net.Conn
	client net.Conn
	*http2.Framer
	drops []Drop
	ended chan error // of the server's reads
}

// newPeer makes a connection of which the server reads all.
func newPeer(header time.Duration) *peer {
	p := &peer{ended: make(chan error, 1)}
	var below net.Conn
	p.client, below = net.Pipe()
	p.server = New(below, header, func(why Drop) { p.drops = append(p.drops, why) })
	p.Framer = http2.NewFramer(p.client, p.client)
	p.Framer.AllowIllegalWrites = true
	go func() {
		_, err := io.Copy(io.Discard, p.server)
		p.ended <- err
	}()
	return p
}

// flood sends until the server ends the connection, at most so often, and returns how often it did. Then it reads the
// GOAWAY.
func (p *peer) flood(t *testing.T, most int, send func(*http2.Framer) error) (sent int) {
	t.Helper()
	goAway := make(chan *http2.GoAwayFrame, 1)
	go func() {
		defer close(goAway)
		f, err := p.ReadFrame()
		if g, ok := f.(*http2.GoAwayFrame); ok && err == nil {
			goAway <- g
		}
		_, _ = io.Copy(io.Discard, p.client)
	}()
	for sent < most && send(p.Framer) == nil {
		sent++
	}
	if sent == most {
		_ = p.client.Close()
		<-goAway
		<-p.ended
		return sent
	}
	g, ok := <-goAway
	if !ok || g.ErrCode != http2.ErrCodeEnhanceYourCalm {
		t.Errorf("no GOAWAY came: %v", g)
	}
	if <-p.ended; len(p.drops) != 1 || p.drops[0] != Flood {
		t.Errorf("dropped for %v", p.drops)
	}
	return sent
}

// Frames that are neither requests nor content have a bound, whichever they are.
func TestFloodsEnd(t *testing.T) {
	stream := uint32(1)
	for name, test := range map[string]struct {
		most int
		send func(*http2.Framer) error
	}{
		"PING":               {budgetMost, func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) }},
		"PING ACK":           {budgetMost, func(f *http2.Framer) error { return f.WritePing(true, [8]byte{}) }},
		"SETTINGS":           {budgetMost, func(f *http2.Framer) error { return f.WriteSettings() }},
		"empty DATA":         {budgetMost, func(f *http2.Framer) error { return f.WriteData(1, false, nil) }},
		"padding":            {budgetMost, func(f *http2.Framer) error { return f.WriteDataPadded(1, false, nil, make([]byte, 255)) }},
		"WINDOW_UPDATE":      {budgetMost, func(f *http2.Framer) error { return f.WriteWindowUpdate(0, 1) }},
		"PRIORITY":           {budgetMost, func(f *http2.Framer) error { return f.WritePriority(1, http2.PriorityParam{}) }},
		"unknown":            {budgetMost, func(f *http2.Framer) error { return f.WriteRawFrame(0xfa, 0, 1, []byte("x")) }},
		"empty CONTINUATION": {budgetMost, func(f *http2.Framer) error { return f.WriteContinuation(1, false, nil) }},
		"rapid reset": {budgetMost / costStream, func(f *http2.Framer) error {
			stream += 2
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true}); err != nil {
				return err
			}
			return f.WriteRSTStream(stream, http2.ErrCodeCancel)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if n := newPeer(time.Minute).flood(t, 3*budgetMost, test.send); n > test.most+1 || n < test.most/3 {
					t.Errorf("%d passed, want up to %d", n, test.most)
				}
			})
		})
	}
}

// What good clients send beside their requests is never too much, however long it lasts.
func TestGoodClientsPass(t *testing.T) {
	for name, send := range map[string]func(p *peer, server *http2.Framer, i int) error{
		"pings of an idle stream": func(p *peer, _ *http2.Framer, _ int) error {
			time.Sleep(10 * time.Second)
			return p.WritePing(false, [8]byte{})
		},
		"calls with an empty DATA frame at the end, and window updates": func(p *peer, server *http2.Framer, i int) error {
			stream := uint32(2*i + 1)
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true})
			_ = p.WriteData(stream, false, []byte("question"))
			_ = p.WriteData(stream, true, nil)
			_ = p.WriteWindowUpdate(0, 10)
			_ = p.WriteWindowUpdate(stream, 10)
			_ = p.WritePing(false, [8]byte{})
			_ = server.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true})
			_ = server.WriteData(stream, false, []byte("answer"))
			return server.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, EndStream: true})
		},
		"a download with two window updates for each frame": func(p *peer, server *http2.Framer, i int) error {
			if err := server.WriteData(1, false, make([]byte, 1000)); err != nil {
				return err
			}
			_ = p.WriteWindowUpdate(0, 1000)
			return p.WriteWindowUpdate(1, 1000)
		},
		"a stream of small messages with what grpc-go sends for each": func(p *peer, server *http2.Framer, i int) error {
			if err := server.WriteData(1, false, []byte("small")); err != nil {
				return err
			}
			_ = p.WriteWindowUpdate(0, 5)
			return p.WritePing(false, [8]byte{})
		},
		"an upload in small pieces": func(p *peer, _ *http2.Framer, _ int) error { return p.WriteData(1, false, []byte("x")) },
		"twenty calls a second that are given up": func(p *peer, _ *http2.Framer, i int) error {
			time.Sleep(time.Second / 20)
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), EndHeaders: true})
			return p.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(time.Minute)
				read := make(chan struct{})
				go func() {
					defer close(read)
					_, _ = io.Copy(io.Discard, p.client)
				}()
				server := http2.NewFramer(p.server, nil)
				for i := range 5 * budgetMost {
					if err := send(p, server, i); err != nil {
						t.Fatalf("ended at %d: %v, dropped for %v", i, err, p.drops)
					}
				}
				_ = p.client.Close()
				<-p.ended
				<-read
				if len(p.drops) > 0 {
					t.Errorf("dropped for %v", p.drops)
				}
			})
		})
	}
}

// A header ends in its time, in whatever frames and pieces it comes; one that does not is given up at that time, and the
// connection with it.
func TestHeadersHaveATime(t *testing.T) {
	const limit = 10 * time.Second
	begin := func(p *peer) { _ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x82}}) }
	for name, test := range map[string]struct {
		send  func(p *peer) error // each 2 s
		begin func(p *peer)
	}{
		"CONTINUATION of a byte": {func(p *peer) error { return p.WriteContinuation(1, false, []byte{0x84}) }, begin},
		"empty CONTINUATION":     {func(p *peer) error { return p.WriteContinuation(1, false, nil) }, begin},
		"HEADERS byte by byte": {func(p *peer) error { _, err := p.client.Write([]byte{0}); return err }, func(p *peer) {
			_, _ = p.client.Write([]byte{0, 1, 0, kindHeaders, flagEndHeaders, 0, 0, 0, 1})
		}},
		"nothing": {func(*peer) error { return nil }, begin},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPeer(limit)
				go func() { _, _ = io.Copy(io.Discard, p.client) }()
				// Headers in time, whole and in two frames, are no trouble.
				for i := range 20 {
					_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), EndHeaders: i%2 == 0})
					if time.Sleep(limit / 2); i%2 == 1 {
						_ = p.WriteContinuation(uint32(2*i+1), true, nil)
					}
				}
				start := time.Now()
				test.begin(p)
				sent := make(chan struct{})
				go func() {
					defer close(sent)
					for test.send(p) == nil && time.Since(start) < 3*limit {
						time.Sleep(2 * time.Second)
					}
				}()
				<-p.ended
				if took := time.Since(start); took != limit || len(p.drops) != 1 || p.drops[0] != Header {
					t.Errorf("ended after %v for %v", took, p.drops)
				}
				_ = p.client.Close()
				<-sent
			})
		})
	}
}

// A GOAWAY is written between frames only, whoever writes.
func TestGoAwayTearsNoFrame(t *testing.T) {
	client, below := net.Pipe()
	defer client.Close()
	c := New(below, 0, nil)
	got := make(chan []byte)
	go func() {
		all, _ := io.ReadAll(client)
		got <- all
	}()
	var text bytes.Buffer
	_ = http2.NewFramer(&text, nil).WriteData(1, false, []byte("content"))
	_, _ = c.Write(text.Bytes()[:12])
	c.(*Conn).GoAway()
	_, _ = c.Write(text.Bytes()[12:])
	c.(*Conn).GoAway()
	_ = c.Close()
	framer := http2.NewFramer(nil, bytes.NewReader(<-got))
	if f, err := framer.ReadFrame(); err != nil || string(f.(*http2.DataFrame).Data()) != "content" {
		t.Errorf("got %v, %v", f, err)
	}
	if f, err := framer.ReadFrame(); err != nil || f.(*http2.GoAwayFrame).LastStreamID != mostStream {
		t.Errorf("got %v, %v", f, err)
	}
	if f, err := framer.ReadFrame(); err == nil {
		t.Errorf("then came %v", f)
	}
}

// The scanner finds the frames that another reader finds, in whatever pieces they come.
func FuzzScanner(f *testing.F) {
	f.Add(uint64(1), []byte{0, 1, 0, 200, 3})
	f.Add(uint64(7), bytes.Repeat([]byte{0, 255, 9}, 50))
	f.Fuzz(func(t *testing.T, seed uint64, lengths []byte) {
		random := rand.New(rand.NewPCG(seed, 0))
		var text bytes.Buffer
		framer := http2.NewFramer(&text, nil)
		var want []frame
		for _, length := range lengths {
			w := frame{length: uint32(length) * 40, kind: uint8(random.Uint32()), flags: uint8(random.Uint32()), stream: random.Uint32() & mostStream}
			if err := framer.WriteRawFrame(http2.FrameType(w.kind), http2.Flags(w.flags), w.stream, make([]byte, w.length)); err != nil {
				t.Fatal(err)
			}
			want = append(want, w)
		}
		var s scanner
		var got []frame
		for rest := text.Bytes(); len(rest) > 0; {
			n := 1 + random.IntN(min(len(rest), 1+random.IntN(3000)))
			for piece := rest[:n]; ; {
				one, after, ok := s.next(piece)
				if !ok {
					break
				}
				got, piece = append(got, one), after
			}
			rest = rest[n:]
		}
		if len(got) != len(want) {
			t.Fatalf("found %d frames of %d", len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Fatalf("frame %d is %+v, want %+v", i, got[i], want[i])
			}
		}
	})
}

// BenchmarkRead is what a read of 16 KiB costs, with one frame and with many.
func BenchmarkRead(b *testing.B) {
	for name, length := range map[string]int{"one frame": 16<<10 - frameHeader, "frames of 100 bytes": 91} {
		b.Run(name, func(b *testing.B) {
			var text bytes.Buffer
			framer := http2.NewFramer(&text, nil)
			for text.Len()+frameHeader+length <= 16<<10 {
				_ = framer.WriteRawFrame(0, 0, 1, make([]byte, length))
			}
			c := New(&same{text: text.Bytes()}, time.Minute, nil)
			buffer := make([]byte, 16<<10)
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.Read(buffer)
			}
		})
	}
}

// same gives the same bytes for each read.
type same struct {
	net.Conn
	text []byte
}

func (s *same) Read(b []byte) (int, error) { return copy(b, s.text), nil }
