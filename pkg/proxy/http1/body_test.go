package http1

import (
	"bytes"
	"io"
	"net/http/httputil"
	"strings"
	"testing"
)

var chunkedBodies = []string{
	"2\r\nok\r\n0\r\n\r\n",
	"2\r\nok\r\na;x=y\r\n0123456789\r\n0\r\nX: y\r\n\r\n",
	"0\r\n\r\nsurplus",
	"00002\r\nok\r\n0\r\n\r\n",
	"2 \r\nok\r\n0\r\n\r\n",
	// Malformed, or not whole.
	"2\r\nokay\r\n0\r\n\r\n",
	"2\nok\r\n0\r\n\r\n",
	"-2\r\nok\r\n0\r\n\r\n",
	"+2\r\nok\r\n0\r\n\r\n",
	"0x2\r\nok\r\n0\r\n\r\n",
	"2_0\r\nok\r\n0\r\n\r\n",
	"ffffffffffffffff\r\nok\r\n0\r\n\r\n",
	"10000000000000000\r\nok\r\n0\r\n\r\n",
	"\r\n2\r\nok\r\n0\r\n\r\n",
	strings.Repeat("0", 5000) + "2\r\nok\r\n0\r\n\r\n",
	"2\r\nok\r\n0\r\n",
	"2\r\no",
}

// takeAll gives a body to the engine in pieces of a size, and returns its data.
func takeAll(y *body, text string, size int) (data []byte, err error) {
	for len(text) > 0 && !y.whole && err == nil {
		piece := []byte(text[:min(size, len(text))])
		text = text[len(piece):]
		var some []byte
		some, err = y.take(piece)
		data = append(data, some...)
	}
	return data, err
}

// What the engine reads of chunks, in whichever pieces they come, is what net/http reads of them; and what a client gets
// says the same again.
func FuzzChunks(f *testing.F) {
	for _, text := range chunkedBodies {
		f.Add(text, 1)
		f.Add(text, 7)
		f.Add(text, len(text))
	}
	f.Fuzz(func(t *testing.T, text string, size int) {
		if size < 1 || len(text) > 20_000 {
			return
		}
		y := body{framing: byChunks, toChunks: true}
		data, err := takeAll(&y, text, size)
		if err != nil || !y.whole {
			return
		}
		want, err := io.ReadAll(httputil.NewChunkedReader(strings.NewReader(text)))
		if err != nil || !bytes.Equal(data, want) {
			t.Fatalf("%q is %q, to net/http %q, %v", text, data, want, err)
		}
		buffer := make([]byte, frameBefore+len(data)+frameBehind)
		copy(buffer[frameBefore:], data)
		sent := append([]byte(nil), y.frame(buffer, frameBefore, len(data))...)
		if sent, err = y.appendEnd(sent); err != nil {
			return // the trailer is malformed
		}
		if got, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(sent))); err != nil || !bytes.Equal(got, data) {
			t.Fatalf("the client gets %q of %q, %v", sent, text, err)
		}
	})
}

// Chunks that are malformed end the answer; those that are not whole are waited for.
func TestChunks(t *testing.T) {
	for i, text := range chunkedBodies {
		y := body{framing: byChunks}
		data, err := takeAll(&y, text, 3)
		if whole := i < 5; whole != (y.whole && err == nil) {
			t.Errorf("%.40q: whole is %t, %v, data %q", text, y.whole, err, data)
		}
	}
}

// The head of an answer ends with an empty line, whichever line ends it has.
func TestHeadEnd(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "a\r\n\r\n": 5, "a\n\n": 3, "a\n\r\nbody": 4, "a\r\nb\r\n": 0, "a\r\nb\r\n\r\nc\r\n\r\n": 8, "a\r\n\r": 0, "a\n\nb\r\n\r\n": 3,
	} {
		if got := headEnd([]byte(text)); got != want {
			t.Errorf("%q: the head has %d bytes, want %d", text, got, want)
		}
	}
}
