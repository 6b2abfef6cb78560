package tcp

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/shaper"
	"github.com/tinkerbell/stack/pkg/proxy/shaper/shapertest"
)

// shaped is a shaper of a rate in bits a second.
func shaped(bits int64) *shaper.Shaper {
	s := &shaper.Shaper{}
	s.SetRate(bits)
	return s
}

// sending writes content to each connection.
func sending(t *testing.T, content []byte) netip.AddrPort {
	t.Helper()
	return backend(t, func(c *net.TCPConn) {
		_, _ = c.Write(content)
		_ = c.CloseWrite()
		_, _ = io.Copy(io.Discard, c)
	})
}

// A stream to a client takes as long as its bytes take at the rate, copied, spliced or by TLS. A stream to the
// endpoint has no rate.
func TestStreamsHoldTheRate(t *testing.T) {
	content := make([]byte, 2<<20)
	_, _ = rand.Read(content)
	cert, pool := identity(t, tlsName)
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			const bits = 32e6
			s := Settings{Shaper: shaped(bits)}
			if secure {
				s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
			}
			r := start(t, s, sending(t, content))
			var conn stream = r.dial(t)
			if secure {
				conn = tls.Client(r.dial(t), &tls.Config{RootCAs: pool, ServerName: tlsName})
			}
			began := time.Now()
			got, err := io.ReadAll(conn)
			took := time.Since(began)
			if err != nil || !bytes.Equal(got, content) {
				t.Fatalf("got %d bytes, %v", len(got), err)
			}
			if least := time.Duration(float64(len(content)) * 8 / bits * .9 * float64(time.Second)); took < least {
				t.Errorf("took %v, which is less than %v", took, least)
			}
		})
	}
	t.Run("to the endpoint", func(t *testing.T) {
		const bits = 1 // for ever
		r := start(t, Settings{Shaper: shaped(bits)}, backend(t, func(c *net.TCPConn) {
			_, _ = io.Copy(io.Discard, c)
		}))
		conn := r.dial(t)
		if _, err := conn.Write(content); err != nil {
			t.Fatal(err)
		}
		_ = conn.CloseWrite()
		if _, err := io.ReadAll(conn); err != nil {
			t.Error(err)
		}
	})
}

// Open streams follow a rate that is set, changed and removed.
func TestRateChangesUnderWay(t *testing.T) {
	content := make([]byte, 64<<20) // more than the sockets' buffers hold
	_, _ = rand.Read(content)
	s := shaped(0)
	r := start(t, Settings{Shaper: s}, sending(t, content))
	conn := r.dial(t)
	got := make([]byte, len(content))
	if _, err := io.ReadFull(conn, got[:16<<20]); err != nil {
		t.Fatal(err)
	}
	s.SetRate(800e6)
	began := time.Now()
	if _, err := io.ReadFull(conn, got[16<<20:48<<20]); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 100*time.Millisecond { // a part was in buffers already
		t.Errorf("32 MiB at 800 Mbit/s took %v", took)
	}
	s.SetRate(1) // streams that wait now would wait for ever
	time.Sleep(50 * time.Millisecond)
	s.SetRate(0)
	if _, err := io.ReadFull(conn, got[48<<20:]); err != nil || !bytes.Equal(got, content) {
		t.Errorf("got something else, or %v", err)
	}
}

// Two addresses share the rate, though one has four streams.
func TestAddressesShareTheRate(t *testing.T) {
	const bits = 4e6 // a turn takes 8 ms: a machine that is late by a few loses nobody a turn
	r := start(t, Settings{Shaper: shaped(bits)}, sending(t, make([]byte, 64<<20)))
	share := shapertest.Share(t, r.Addr(), "", 4)
	if share < .45 || share > .55 { // by connections it would be .8 and more
		t.Errorf("the one with four streams has %.3f of all", share)
	}
}

// A session that waits for its rate is not idle. A piece waits for a second here.
func TestWaitForTheRateIsNotIdle(t *testing.T) {
	const bits = 32e3
	r := start(t, Settings{Shaper: shaped(bits), Idle: 700 * time.Millisecond}, sending(t, make([]byte, 9000)))
	if got, err := io.ReadAll(r.dial(t)); err != nil || len(got) != 9000 {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
}

// The end of a drain ends the wait for the rate.
func TestDrainEndsWaits(t *testing.T) {
	const bits = 1
	r := start(t, Settings{Shaper: shaped(bits), Drain: 100 * time.Millisecond}, sending(t, make([]byte, 9000)))
	conn := r.dial(t)
	for r.Active() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadAll(conn); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("got %v, want a reset", err)
	}
}
