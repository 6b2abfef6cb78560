package web

import (
	"io"
	"strings"
	"testing"
	"time"
)

// A part of an answer must not look whole to a client of HTTP/1.0, which takes the end of the connection for the end of
// the answer: the connection is reset, whatever framing the endpoint has used.
func TestTornAnswerIsResetForOldClients(t *testing.T) {
	for name, answer := range map[string]string{
		"chunks, early end": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"chunks, malformed": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n",
	} {
		for way, request := range oldWays {
			t.Run(name+"/"+way, func(t *testing.T) {
				addr, _ := raw(t, answer)
				c := start(t, Settings{Pool: pool(addr)}).talk(t)
				_, _ = io.WriteString(c.Conn, request)
				if got, err := io.ReadAll(c.Conn); err == nil {
					t.Errorf("a torn answer ends in order, as if it were whole: %q", got)
				}
			})
		}
	}
}

// oldWays are requests of HTTP/1.0 by each way.
var oldWays = map[string]string{
	"engine":   "GET / HTTP/1.0\r\nHost: h\r\n\r\n",
	"net/http": "GET / HTTP/1.0\r\n\r\n",
}

// An answer that is still under way when a drain's time is over is torn, too.
func TestAnswerAtTheEndOfADrainIsResetForOldClients(t *testing.T) {
	for way, request := range oldWays {
		t.Run(way, func(t *testing.T) {
			addr, _ := raw(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "")
			r := start(t, Settings{Pool: pool(addr), Drain: time.Millisecond})
			c := r.talk(t)
			_, _ = io.WriteString(c.Conn, request)
			for got := ""; !strings.HasSuffix(got, "hello"); {
				b, err := c.Reader.ReadByte()
				if err != nil {
					t.Fatal(got, err)
				}
				got += string(b)
			}
			stopped := make(chan error, 1)
			go func() { stopped <- r.stop() }()
			if got, err := io.ReadAll(c.Reader); err == nil {
				t.Errorf("a torn answer ends in order, as if it were whole: %q", got)
			}
			_ = c.Conn.Close()
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// A whole answer ends in order for them.
func TestWholeAnswerOfOldClientsEndsInOrder(t *testing.T) {
	for way, request := range oldWays {
		t.Run(way, func(t *testing.T) {
			addr, _ := raw(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
			c := start(t, Settings{Pool: pool(addr)}).talk(t)
			_, _ = io.WriteString(c.Conn, request)
			if got, err := io.ReadAll(c.Conn); err != nil || !strings.HasSuffix(string(got), "\r\n\r\nhello") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}

// A trailer's name may be any token, and its value may have bytes beyond ASCII (RFC 9110, sections 5.1 and 5.5): it
// passes on each way, and tears nothing.
func TestTrailerOfAnyToken(t *testing.T) {
	withAndWithout(t, func(t *testing.T, start starter) {
		for _, line := range []string{"X-Sum: a", "X.Sum: a", "X!: a", "X-Sum: \xc3\xa4"} {
			t.Run(line, func(t *testing.T) {
				addr, _ := raw(t, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n"+line+"\r\n\r\n")
				c := start(t, Settings{Pool: pool(addr)}).talk(t)
				_, _ = io.WriteString(c.Conn, strings.Replace(plainGet, "\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1))
				got, err := io.ReadAll(c.Conn)
				if !strings.HasSuffix(strings.ToLower(string(got)), "\r\n0\r\n"+strings.ToLower(line)+"\r\n\r\n") {
					t.Errorf("got %q, %v", got, err)
				}
			})
		}
	})
}
