package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// handshakers shake hands at a time.
const handshakers = 8

// handshakes counts full handshakes (TLS 1.3, X25519) on connections on which nothing else happens, with a
// certificate of ECDSA P-256, then with one of RSA 2048.
func (b *bench) handshakes(ctx context.Context, p *process.Process) (rounds.Sample, error) {
	s := rounds.Sample{}
	for metric, addr := range map[string]string{"per_cpu_s": ecdsaAddr, "rsa_per_cpu_s": rsaAddr} {
		var done atomic.Int64
		var clients sync.WaitGroup
		faults := make([]error, handshakers)
		used, end := p.CPU(), time.Now().Add(b.Duration)
		for i := range handshakers {
			clients.Go(func() {
				config := secure()
				for faults[i] == nil && time.Now().Before(end) && ctx.Err() == nil {
					if faults[i] = greet(ctx, addr, config); faults[i] == nil {
						done.Add(1)
					}
				}
			})
		}
		clients.Wait()
		if err := errors.Join(faults...); err != nil {
			return nil, err
		}
		s[metric] = float64(done.Load()) / (p.CPU() - used)
	}
	return s, ctx.Err()
}

// greet shakes hands and waits until the server has let go of the connection: by then it has done its part.
func greet(ctx context.Context, addr string, config *tls.Config) error {
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	client, err := handshake(ctx, conn, config)
	if err != nil {
		return err
	}
	if err := errors.Join(client.CloseWrite(), conn.(*net.TCPConn).CloseWrite()); err != nil {
		return err
	}
	if _, err := discard(conn.(*net.TCPConn), time.Now().Add(10*time.Second)); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
