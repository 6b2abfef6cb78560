// Package shapertest measures in tests how clients share a route's rate.
package shapertest

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/tinkerbell/stack/internal/testwait"
)

// Share is the part of what two client addresses receive in two seconds, 0 to 1, that goes to the one with several
// connections; the other one has a single connection. Each connection sends the request, and reads without end.
func Share(t *testing.T, server netip.AddrPort, request string, several int) float64 {
	t.Helper()
	const many, single = "127.0.0.2", "127.0.0.3"
	var mu sync.Mutex
	got, stop := map[string]float64{}, make(chan struct{})
	var group sync.WaitGroup
	for from, connections := range map[string]int{many: several, single: 1} {
		for range connections {
			group.Go(func() {
				dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))}
				c, err := dialer.Dial("tcp", server.String())
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				_, _ = io.WriteString(c, request)
				for buffer := make([]byte, 64<<10); ; {
					n, err := c.Read(buffer)
					select {
					case <-stop:
						return
					default:
					}
					if err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					got[from] += float64(n)
					mu.Unlock()
				}
			})
		}
	}
	testwait.Until(t, "both addresses get something", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(got) == 2
	})
	time.Sleep(200 * time.Millisecond) // the connections are not made at one moment
	mu.Lock()
	clear(got)
	mu.Unlock()
	time.Sleep(2 * time.Second)
	mu.Lock()
	share := got[many] / (got[many] + got[single])
	t.Logf("received, in bytes: %v", got)
	mu.Unlock()
	close(stop)
	group.Wait()
	return share
}
