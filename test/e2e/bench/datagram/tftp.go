package datagram

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/process"
)

const (
	blockSize  = 512
	bigBlock   = 1468 // fills an Ethernet frame
	loaders    = 100  // clients at once that load a boot loader
	loader     = 1 << 20
	lockstep   = 20_000 // blocks of the single client
	rack       = 1000   // clients at once
	rackBlocks = 64     // blocks of each
	rackLimit  = 30 * time.Second
	retry      = 500 * time.Millisecond
)

// transfer is a file of so many blocks, the last of which is empty. Its client asks for windows of so many, where that
// is more than one.
type transfer struct{ blocks, size, window int }

var (
	ask  = []byte("\x00\x01file\x00octet\x00")
	oack = []byte("\x00\x06blksize\x001468\x00")
)

// request asks for the file, with the option of its block size where that is not the default.
func (t transfer) request() []byte {
	if t.size == blockSize {
		return ask
	}
	b := append(bytes.Clone(ask), oack[2:]...)
	if t.window > 1 {
		b = fmt.Appendf(b, "windowsize\x00%d\x00", t.window)
	}
	return b
}

// bootFile is the loader's transfer, as a file.
func bootFile() []byte { return make([]byte, loader/bigBlock*bigBlock) }

// serve is the least TFTP server: it answers from its only port and keeps nothing, so that a repeated datagram is
// answered again. It ends when conn is closed.
func serve(conn *net.UDPConn, t transfer) {
	buf := make([]byte, 1500)
	data := make([]byte, 4+t.size)
	data[1] = 3
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 4 {
			continue
		}
		var next int
		switch {
		case buf[1] == 4:
			next = int(binary.BigEndian.Uint16(buf[2:])) + 1
		case buf[1] != 1:
			continue
		case t.size != blockSize:
			_, _ = conn.WriteToUDPAddrPort(oack, from)
			continue
		default:
			next = 1
		}
		if next > t.blocks {
			continue
		}
		binary.BigEndian.PutUint16(data[2:], uint16(next))
		size := t.size
		if next == t.blocks {
			size = 0
		}
		_, _ = conn.WriteToUDPAddrPort(data[:4+size], from)
	}
}

func startServer(n *site, t transfer) (stop func(), err error) {
	conn, err := listenUDP(n.server, net.ParseIP(serverIP), 69)
	if err != nil {
		return nil, err
	}
	if err := force(conn, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
		return nil, err
	}
	var serving sync.WaitGroup
	serving.Go(func() { serve(conn, t) })
	return func() {
		_ = conn.Close()
		serving.Wait()
	}, nil
}

// fetch is a client, in lockstep where the server takes no windows, that loses what lose says, and asks again after
// retry.
//
// The server may answer from a port of the transfer (RFC 1350 section 4).
func fetch(ctx context.Context, conn *net.UDPConn, to netip.AddrPort, t transfer, lose func() bool) (
	window int, err error,
) {
	packet := t.request()
	buf := make([]byte, 1500)
	send := func() error {
		if lose() {
			return nil
		}
		_, err := conn.WriteToUDPAddrPort(packet, to)
		return err
	}
	if err := send(); err != nil {
		return 0, err
	}
	ack := []byte{0, 4, 0, 0}
	expected := 1
	if t.size != blockSize {
		expected = 0 // stands for the OACK
	}
	window = 1
	for asked := true; expected <= t.blocks; {
		_ = conn.SetReadDeadline(time.Now().Add(retry))
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := send(); err != nil {
				return 0, err
			}
			continue
		case err != nil:
			return 0, err
		case asked && from.Addr() == to.Addr():
			to, asked = from, false
		case from != to:
			return 0, fmt.Errorf("answered from %s, asked %s", from, to)
		}
		switch {
		case n < 4 || lose():
			continue
		case expected == 0:
			if buf[1] != 6 {
				continue
			}
			if bytes.Contains(buf[:n], []byte("windowsize\x00")) {
				window = t.window
			}
		case buf[1] != 3 || int(binary.BigEndian.Uint16(buf[2:])) != expected:
			continue
		}
		binary.BigEndian.PutUint16(ack[2:], uint16(expected))
		packet = ack
		expected++
		if last := expected - 1; last%window != 0 && last < t.blocks {
			continue
		}
		if err := send(); err != nil {
			return 0, err
		}
	}
	return window, nil
}

func never() bool { return false }

// measureBlocks is one client in lockstep: the time of a block.
func measureBlocks(ctx context.Context, n *site, target string, p *process.Process) (rounds.Sample, error) {
	t := transfer{blocks: lockstep, size: blockSize}
	stop, err := startServer(n, t)
	if err != nil {
		return nil, err
	}
	defer stop()
	conn, err := listenUDP(n.client, clientIP(0), 0)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	to := netip.AddrPortFrom(netip.MustParseAddr(target), 69)
	if _, err := fetch(ctx, conn, to, transfer{blocks: 10, size: blockSize}, never); err != nil { // neighbours, caches
		return nil, err
	}
	before := p.CPU()
	start := time.Now()
	if _, err := fetch(ctx, conn, to, t, never); err != nil {
		return nil, err
	}
	elapsed := time.Since(start)
	after := p.CPU()
	s := rounds.Sample{"us_per_block": float64(elapsed.Microseconds()) / lockstep}
	if p != nil {
		s["cpu_us_per_block"] = (after - before) * 1e6 / lockstep
	}
	return s, nil
}

// measureRack is a rack that boots at once over a network that loses one datagram in a hundred each way.
func measureRack(ctx context.Context, n *site, target string, _ *process.Process) (rounds.Sample, error) {
	completed, _, seconds, err := fetchAtOnce(ctx, n, target, rack, transfer{blocks: rackBlocks, size: blockSize}, 0.01)
	return rounds.Sample{"completed_pct": 100 * float64(completed) / rack, "seconds": seconds}, err
}

// loadersOf is a rack that loads a boot loader at once, by clients that ask for windows of so many blocks: 4 are
// edk2's. It gives the processor time of a block, and the window that the server agreed to.
func loadersOf(window int) measurement {
	return func(ctx context.Context, n *site, target string, p *process.Process) (rounds.Sample, error) {
		return measureWindows(ctx, n, target, p, window)
	}
}

func measureWindows(ctx context.Context, n *site, target string, p *process.Process, window int) (
	rounds.Sample, error) {
	before := p.CPU()
	t := transfer{loader/bigBlock + 1, bigBlock, window}
	completed, agreed, seconds, err := fetchAtOnce(ctx, n, target, loaders, t, 0)
	if err != nil {
		return nil, err
	}
	if completed < loaders {
		return nil, fmt.Errorf("failed to load: %d of %d clients have the file", completed, loaders)
	}
	after := p.CPU()
	s := rounds.Sample{"seconds": seconds, "window": float64(agreed)}
	if p != nil {
		s["cpu_us_per_block"] = (after - before) * 1e6 / float64(loaders*t.blocks)
	}
	return s, nil
}

// fetchAtOnce has clients load a file at once, each of which loses a part of its datagrams in either direction. Agreed
// is the window of one of them.
func fetchAtOnce(ctx context.Context, n *site, target string, clients int, t transfer, loss float64) (
	completed, agreed int64, seconds float64, err error) {
	stop, err := startServer(n, t)
	if err != nil {
		return 0, 0, 0, err
	}
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, rackLimit)
	defer cancel()
	to := netip.AddrPortFrom(netip.MustParseAddr(target), 69)
	conns := make([]*net.UDPConn, clients)
	for i := range conns {
		if conns[i], err = listenUDP(n.client, clientIP(i), 0); err != nil {
			return 0, 0, 0, err
		}
		defer conns[i].Close()
	}
	var done, window atomic.Int64
	var booting sync.WaitGroup
	start := time.Now()
	for i, conn := range conns {
		booting.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			if own, err := fetch(ctx, conn, to, t, func() bool { return r.Float64() < loss }); err == nil {
				done.Add(1)
				window.Store(int64(own))
			}
		})
	}
	booting.Wait()
	return done.Load(), window.Load(), time.Since(start).Seconds(), nil
}
