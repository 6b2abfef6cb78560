package tcp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// duplex is a session in which both sides send at once. The client tells the endpoint how much each sends, the seed of
// pieces and pauses, and after how many bytes an end resets the connection, if one does.
type duplex struct {
	Seed                         int64
	FromClient, FromServer       int64 // bytes
	ClientResetAt, ServerResetAt int64 // bytes; 0 is never
}

func randomDuplex(r *rand.Rand) duplex {
	size := func() int64 { return r.Int64N(1 << (1 + r.IntN(17))) }
	d := duplex{Seed: r.Int64N(1<<62) + 1, FromClient: size(), FromServer: size()}
	switch r.IntN(6) {
	case 0:
		d.ClientResetAt = 1 + r.Int64N(max(d.FromClient, 1))
	case 1:
		d.ServerResetAt = 1 + r.Int64N(max(d.FromServer, 1))
	case 2: // about as many bytes as make a session a long one
		d.FromClient, d.FromServer = 64<<10-int64(binary.Size(d))+r.Int64N(5)-2, 0
	}
	return d
}

// talk sends one end's bytes and reads the other's: how many were right, and how reading ended.
func (d duplex) talk(conn *net.TCPConn, says, hears, resetAt, sign int64) (heard int64, err error) {
	r := rand.New(rand.NewPCG(uint64(d.Seed), uint64(sign)))
	if r.IntN(3) == 0 {
		_ = conn.SetReadBuffer(8192)
		_ = conn.SetWriteBuffer(8192)
	}
	slow, rest := r.IntN(4) == 0, r.Uint64()
	said := make(chan error, 1)
	go func() { said <- d.say(conn, says, resetAt, sign, rand.New(rand.NewPCG(rest, 0))) }()
	want := randomly(d.Seed * -sign)
	got, wanted := make([]byte, 64<<10), make([]byte, 64<<10)
	for naps := 10; err == nil; {
		var n int
		n, err = conn.Read(got[:piece(r, hears)])
		_, _ = io.ReadFull(want, wanted[:n])
		if !bytes.Equal(got[:n], wanted[:n]) {
			err = fmt.Errorf("wrong bytes between %d and %d", heard, heard+int64(n))
		}
		if heard += int64(n); slow && naps > 0 {
			naps--
			time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
		}
	}
	if failure := <-said; errors.Is(err, io.EOF) {
		err = failure
	}
	if err == nil && heard != hears {
		err = fmt.Errorf("an end after %d of %d bytes", heard, hears)
	}
	return heard, err
}

// piece is how many of all bytes are read or written at once: between a hundredth of them and 64 KiB.
func piece(r *rand.Rand, all int64) int64 {
	return min(all/100+1+r.Int64N(1<<(1+r.IntN(16))), 64<<10)
}

func (d duplex) say(conn *net.TCPConn, says, resetAt, sign int64, r *rand.Rand) error {
	from, room := randomly(d.Seed*sign), make([]byte, 64<<10)
	for said, naps := int64(0), 10; said < says; {
		b := room[:min(says-said, piece(r, says))]
		_, _ = io.ReadFull(from, b)
		if _, err := conn.Write(b); err != nil {
			return err
		}
		if said += int64(len(b)); resetAt > 0 && said >= resetAt {
			_ = conn.SetLinger(0)
			return conn.Close()
		}
		if naps > 0 && r.IntN(3) == 0 {
			naps--
			time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
		}
	}
	return conn.CloseWrite()
}

// TestDuplex has sessions in which both sides send, pause, end and reset at any moment. No byte is lost of a session
// that ends in order, and neither end takes a torn stream for a whole one.
func TestDuplex(t *testing.T) {
	const limit = 100 * time.Second
	var serving atomic.Int64
	judge := func(who string, d duplex, resetAt, hears, heard int64, err error) {
		switch {
		case d.ClientResetAt == 0 && d.ServerResetAt == 0:
			if err != nil {
				t.Errorf("%s heard %d of %d bytes of %+v: %v", who, heard, hears, d, err)
			}
		case resetAt > 0 && resetAt <= hears && err == nil:
			t.Errorf("%s takes %+v for whole", who, d)
		}
	}
	addr := backend(t, func(conn *net.TCPConn) {
		serving.Add(1)
		defer serving.Add(-1)
		_ = conn.SetDeadline(time.Now().Add(limit))
		var d duplex
		if err := binary.Read(conn, binary.BigEndian, &d); err != nil {
			return // reset before that
		}
		heard, err := d.talk(conn, d.FromServer, d.FromClient, d.ServerResetAt, -1)
		judge("the endpoint", d, d.ClientResetAt, d.FromClient, heard, err)
	})
	r := start(t, Settings{Drain: limit, MaxPerClient: 1000}, addr)
	var clients sync.WaitGroup
	for i := range 16 {
		random := rand.New(rand.NewPCG(uint64(i), 42))
		clients.Go(func() {
			for range 25 {
				d := randomDuplex(random)
				c, err := net.Dial("tcp", r.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				conn := c.(*net.TCPConn)
				_ = conn.SetDeadline(time.Now().Add(limit))
				if err := binary.Write(conn, binary.BigEndian, d); err != nil {
					t.Error(err)
				}
				heard, err := d.talk(conn, d.FromClient, d.FromServer, d.ClientResetAt, 1)
				judge("the client", d, d.ServerResetAt, d.FromServer, heard, err)
				_ = conn.Close()
			}
		})
	}
	clients.Wait()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	for serving.Load() > 0 { // until the kernel has given the last bytes to the last endpoint
		time.Sleep(time.Millisecond)
	}
	if n := testutil.ToFloat64(r.open.WithLabelValues("r")); n != 0 || r.Active() != 0 {
		t.Errorf("%v connections are counted, %d active", n, r.Active())
	}
	for _, e := range pool(r).Status() {
		if e.Active != 0 {
			t.Errorf("endpoint %s has %d connections", e.Address, e.Active)
		}
	}
}
