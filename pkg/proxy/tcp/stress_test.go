package tcp

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// How a stress connection ends, which its first byte tells the endpoint.
const (
	halfClose   byte = iota // the client ends, the endpoint answers with the hash, and ends
	clientReset             // in the middle
	serverReset
	serverFirst // the endpoint ends after its bulk, which the client answers with the hash of
	kinds
)

// referee has the observations of the endpoints.
type referee struct {
	fooled atomic.Int64 // streams that ended though they were torn
	wrong  atomic.Int64
}

func (f *referee) serve(conn *net.TCPConn, reset func()) {
	var head [9]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return
	}
	size := int64(binary.BigEndian.Uint64(head[1:]))
	switch head[0] {
	case halfClose:
		hash := sha256.New()
		if n, err := io.Copy(hash, conn); err != nil || n != size {
			f.wrong.Add(1)
		}
		_, _ = conn.Write(hash.Sum(nil))
		_ = conn.CloseWrite()
	case clientReset:
		if _, err := io.Copy(io.Discard, conn); err == nil {
			f.fooled.Add(1)
		}
	case serverReset:
		_, _ = io.CopyN(io.Discard, conn, size/2)
		reset()
	case serverFirst:
		hash := sha256.New()
		_, _ = io.CopyN(io.MultiWriter(conn, hash), randomly(size), size)
		_ = conn.CloseWrite()
		if got, err := io.ReadAll(conn); err != nil || string(got) != string(hash.Sum(nil)) {
			f.wrong.Add(1)
		}
	}
}

// randomly makes bytes of a seed.
func randomly(seed int64) io.Reader {
	return rand.NewChaCha8(sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(seed))))
}

// stressOne makes a connection of a kind, and fails if that goes wrong.
func stressOne(addr string, kind byte, size int64) error {
	plain, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	conn := plain.(*net.TCPConn)
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	head := binary.BigEndian.AppendUint64([]byte{kind}, uint64(size))
	if _, err := conn.Write(head); err != nil {
		return fmt.Errorf("failed to begin: %w", err)
	}
	hash := sha256.New()
	switch kind {
	case halfClose:
		if _, err := io.CopyN(io.MultiWriter(conn, hash), randomly(size), size); err != nil {
			return err
		}
		_ = conn.CloseWrite()
		if got, err := io.ReadAll(conn); err != nil || string(got) != string(hash.Sum(nil)) {
			return fmt.Errorf("got %x of a half-closed stream: %w", got, errors.Join(err, io.ErrUnexpectedEOF))
		}
	case clientReset:
		_, _ = io.CopyN(conn, randomly(size), size)
		_ = conn.SetLinger(0)
	case serverReset:
		wrote := make(chan error, 1)
		go func() {
			_, err := io.CopyN(conn, randomly(size), size)
			wrote <- err
		}()
		_, err := io.Copy(io.Discard, conn)
		if writing := <-wrote; err == nil && writing == nil { // the kernel reports the reset to one of the two
			return errors.New("a reset became an end")
		}
	case serverFirst:
		if n, err := io.Copy(hash, conn); err != nil || n != size {
			return fmt.Errorf("got %d of %d bytes: %w", n, size, err)
		}
		_, _ = conn.Write(hash.Sum(nil))
		_ = conn.CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
	}
	return nil
}

// TestStress passes many connections of all kinds on, while settings change and endpoints come
// and go. No byte is wrong, no torn stream looks whole, and at the end all descriptors are closed. STRESS is the
// number of connections.
func TestStress(t *testing.T) {
	total := 100
	if text := os.Getenv("STRESS"); text != "" {
		if _, err := fmt.Sscan(text, &total); err != nil {
			t.Fatal(err)
		}
	}
	before := descriptorsOpen(t)
	var f referee
	for name, s := range map[string]Settings{
		"plain": {}, "idle": {Idle: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			f.fooled.Store(0)
			f.wrong.Store(0)
			serve := func(c *net.TCPConn) { f.serve(c, func() { _ = c.SetLinger(0); _ = c.Close() }) }
			a, b := backend(t, serve), backend(t, serve)
			s.Drain, s.Dial, s.MaxPerClient = time.Minute, time.Minute, 1000
			r := start(t, s, a, b, refused(t))
			stressWith(t, r, total, a, b)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			if n := f.wrong.Load(); n != 0 {
				t.Errorf("endpoints got %d streams wrong", n)
			}
			if n := f.fooled.Load(); n != 0 {
				t.Errorf("endpoints took %d torn streams for whole ones", n)
			}
			if n := testutil.ToFloat64(r.open.WithLabelValues("r")); n != 0 || r.Active() != 0 {
				t.Errorf("%v connections are counted as open", n)
			}
		})
	}
	if after := descriptorsOpen(t); after > before+4 { // the poller's own
		t.Errorf("%d descriptors are open at the end, %d at the beginning", after, before)
	}
}

func stressWith(t *testing.T, r running, total int, a, b netip.AddrPort) {
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	others.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			s := *r.settings.Load()
			addrs := [][]netip.AddrPort{{a, b}, {b}, {a}}[i%3]
			s.Pool = endpoint.NewPool(endpoint.Config{Route: "r", Sources: []endpoint.Source{endpoint.Fixed(addrs...)}})
			r.Update(s)
			time.Sleep(time.Millisecond)
		}
	})
	defer others.Wait()
	defer cancel()
	next := make(chan int)
	var clients sync.WaitGroup
	for range 32 {
		clients.Go(func() {
			for i := range next {
				kind := byte(i % int(kinds))
				size := int64(rand.IntN(4 << 10))
				if i%32 < 4 {
					size = spliceAfter + rand.Int64N(4*sock.PipeSize)
				}
				if err := stressOne(r.Addr().String(), kind, size); err != nil {
					t.Errorf("connection %d of kind %d with %d bytes: %v", i, kind, size, err)
				}
			}
		})
	}
	for i := range total {
		next <- i
	}
	close(next)
	clients.Wait()
}

func descriptorsOpen(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
