package datagram

import (
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
)

const (
	blockSize  = 512
	lockstep   = 20_000 // blocks of the single client
	rack       = 1000   // clients at once
	rackBlocks = 64     // blocks of each
	rackLimit  = 30 * time.Second
	retry      = 500 * time.Millisecond
)

// serve is the least TFTP server: it answers from its only port and keeps nothing, so that a repeated datagram is
// answered again. It ends when conn is closed.
func serve(conn *net.UDPConn, blocks int) {
	buf := make([]byte, 1500)
	data := make([]byte, 4+blockSize)
	data[1] = 3
	for {
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n < 4 {
			continue
		}
		next := 1
		if buf[1] == 4 {
			next = int(binary.BigEndian.Uint16(buf[2:])) + 1
		} else if buf[1] != 1 {
			continue
		}
		if next > blocks {
			continue
		}
		binary.BigEndian.PutUint16(data[2:], uint16(next))
		size := blockSize
		if next == blocks {
			size = 0
		}
		_, _ = conn.WriteToUDPAddrPort(data[:4+size], from)
	}
}

func startServer(n *network, blocks int) (stop func(), err error) {
	conn, err := listenUDP(n.server, net.ParseIP(serverIP), 69)
	if err != nil {
		return nil, err
	}
	if err := force(conn, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
		return nil, err
	}
	var serving sync.WaitGroup
	serving.Go(func() { serve(conn, blocks) })
	return func() {
		_ = conn.Close()
		serving.Wait()
	}, nil
}

// fetch is a client in lockstep that loses what lose says, and asks again after retry.
func fetch(ctx context.Context, conn *net.UDPConn, to netip.AddrPort, blocks int, lose func() bool) error {
	packet := []byte("\x00\x01file\x00octet\x00")
	buf := make([]byte, 1500)
	send := func() error {
		if lose() {
			return nil
		}
		_, err := conn.WriteToUDPAddrPort(packet, to)
		return err
	}
	if err := send(); err != nil {
		return err
	}
	ack := []byte{0, 4, 0, 0}
	for expected := 1; expected <= blocks; {
		_ = conn.SetReadDeadline(time.Now().Add(retry))
		n, from, err := conn.ReadFromUDPAddrPort(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := send(); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case from != to:
			return fmt.Errorf("answered from %s, asked %s", from, to)
		case n < 4 || buf[1] != 3 || lose() || int(binary.BigEndian.Uint16(buf[2:])) != expected:
			continue
		}
		binary.BigEndian.PutUint16(ack[2:], uint16(expected))
		packet = ack
		expected++
		if err := send(); err != nil {
			return err
		}
	}
	return nil
}

func never() bool { return false }

// measureBlocks is one client in lockstep: the time of a block.
func measureBlocks(ctx context.Context, n *network, target string, p *process) (rounds.Sample, error) {
	stop, err := startServer(n, lockstep)
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
	if err := fetch(ctx, conn, to, 10, never); err != nil { // neighbours, caches
		return nil, err
	}
	before, err := p.cpu()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	if err := fetch(ctx, conn, to, lockstep, never); err != nil {
		return nil, err
	}
	elapsed := time.Since(start)
	after, err := p.cpu()
	if err != nil {
		return nil, err
	}
	s := rounds.Sample{"us_per_block": float64(elapsed.Microseconds()) / lockstep}
	if p != nil {
		s["cpu_us_per_block"] = float64((after - before).Microseconds()) / lockstep
	}
	return s, nil
}

// measureRack is a rack that boots at once over a network that loses one datagram in a hundred each way.
func measureRack(ctx context.Context, n *network, target string, _ *process) (rounds.Sample, error) {
	stop, err := startServer(n, rackBlocks)
	if err != nil {
		return nil, err
	}
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, rackLimit)
	defer cancel()
	to := netip.AddrPortFrom(netip.MustParseAddr(target), 69)
	conns := make([]*net.UDPConn, rack)
	for i := range conns {
		if conns[i], err = listenUDP(n.client, clientIP(i), 0); err != nil {
			return nil, err
		}
		defer conns[i].Close()
	}
	var completed atomic.Int64
	var booting sync.WaitGroup
	start := time.Now()
	for i, conn := range conns {
		booting.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			if fetch(ctx, conn, to, rackBlocks, func() bool { return r.IntN(100) == 0 }) == nil {
				completed.Add(1)
			}
		})
	}
	booting.Wait()
	return rounds.Sample{
		"completed_pct": 100 * float64(completed.Load()) / rack,
		"seconds":       time.Since(start).Seconds(),
	}, nil
}
