package edge

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// Of the hundred machines that share a rate of 1 Gbit/s, so many open more than one connection.
const (
	sharedRate  = 1e9 // bits a second
	greedy      = 10
	greedyOpen  = 8
	ratedAddr   = "127.0.0.1:8081"
	leastSeries = 5 * time.Second
)

// share has a hundred machines load from the listener with a rate, ten of them by eight connections each, and counts
// the bytes of each machine. A candidate is fair if all get the same, and together no less than the rate.
func (b *bench) share(ctx context.Context, p *process.Process) (rounds.Sample, error) {
	var connections sync.WaitGroup
	var mu sync.Mutex
	got, faults := make([]float64, machines), []error(nil)
	used, begun := p.CPU(), time.Now()
	end := begun.Add(max(b.Duration, leastSeries))
	for i := range machines {
		from := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 1, byte(i + 1)}), 0))
		open := 1
		if i < greedy {
			open = greedyOpen
		}
		for range open {
			connections.Go(func() {
				n, err := onceFrom(ctx, from, ratedAddr, "image", nil, imageSize, end)
				mu.Lock()
				defer mu.Unlock()
				got[i] += float64(n)
				faults = append(faults, err)
			})
		}
	}
	connections.Wait()
	took, cpu := time.Since(begun).Seconds(), p.CPU()-used
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	total, seconds := 0.0, make([]float64, machines)
	for i, n := range got {
		total += n
		seconds[i] = 1 / n // for the same
	}
	return rounds.Sample{
		"jain":           jain(seconds),
		"rate_over_wish": total * 8 / took / sharedRate,
		"cpu_s_per_gib":  cpu / (total / (1 << 30)),
	}, ctx.Err()
}
