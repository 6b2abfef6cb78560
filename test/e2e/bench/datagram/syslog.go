package datagram

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/process"
)

const (
	syslogRate     = 20_000 // datagrams a second
	syslogDuration = 3 * time.Second
	syslogSources  = 100
)

// measureSyslog sends lines at a fixed rate from many machines and counts what arrives.
func measureSyslog(ctx context.Context, n *site, target string, p *process.Process) (rounds.Sample, error) {
	server, err := listenUDP(n.server, net.ParseIP(serverIP), 514)
	if err != nil {
		return nil, err
	}
	if err := force(server, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
		return nil, err
	}
	var received atomic.Int64
	var counting sync.WaitGroup
	counting.Go(func() {
		buf := make([]byte, 65536)
		for {
			if _, _, err := server.ReadFromUDPAddrPort(buf); errors.Is(err, net.ErrClosed) {
				return
			}
			received.Add(1)
		}
	})
	defer func() {
		_ = server.Close()
		counting.Wait()
	}()

	to := (&net.UDPAddr{IP: net.ParseIP(target), Port: 514}).AddrPort()
	sources := make([]*net.UDPConn, syslogSources)
	lines := make([][]byte, 1000)
	for i := range sources {
		if sources[i], err = listenUDP(n.client, clientIP(i), 0); err != nil {
			return nil, err
		}
		defer sources[i].Close()
	}
	r := rand.New(rand.NewPCG(1, 1))
	for i := range lines { // 60 to 200 bytes: no two in a row need be of one length
		lines[i] = fmt.Appendf(nil, "<30>Oct  1 22:14:15 node%d dockerd[412]: %s", i, strings.Repeat("x", 20+r.IntN(140)))
	}
	before := p.CPU()
	sent := 0
	err = network.OnThread(func() error {
		runtime.LockOSThread()
		start := time.Now()
		for ctx.Err() == nil {
			elapsed := time.Since(start)
			if elapsed >= syslogDuration {
				break
			}
			for due := int(elapsed.Seconds() * syslogRate); sent < due; sent++ {
				if _, err := sources[r.IntN(len(sources))].WriteToUDPAddrPort(lines[r.IntN(len(lines))], to); err != nil {
					return err
				}
			}
			ts := unix.NsecToTimespec(int64(50 * time.Microsecond))
			_ = unix.Nanosleep(&ts, nil)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	for last := int64(-1); last != received.Load(); time.Sleep(200 * time.Millisecond) {
		last = received.Load()
	}
	after := p.CPU()
	got := float64(received.Load())
	s := rounds.Sample{"loss_pct": 100 * (float64(sent) - got) / float64(sent)}
	if p != nil {
		s["datagrams_per_cpu_s"] = got / (after - before)
	}
	return s, nil
}

// force sets a socket option that needs CAP_NET_ADMIN.
func force(conn *net.UDPConn, name, value int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, name, value)
	}); err != nil {
		return err
	}
	return set
}
