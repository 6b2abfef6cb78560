package edge

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// streams is how many machines download at a time where the bulk of bytes is measured.
const streams = 2

func (b *bench) bulk(ctx context.Context, p *process.Process) (rounds.Sample, error) {
	return b.download(ctx, p, plainAddr, nil)
}

func (b *bench) bulkTLS(ctx context.Context, p *process.Process) (rounds.Sample, error) {
	return b.download(ctx, p, ecdsaAddr, secure())
}

// download gets the image again and again for the time of a measurement, each time on a new connection.
func (b *bench) download(
	ctx context.Context, p *process.Process, addr string, config *tls.Config,
) (rounds.Sample, error) {
	var clients sync.WaitGroup
	totals, faults := make([]int64, streams), make([]error, streams)
	used, begun := p.CPU(), time.Now()
	end := begun.Add(b.Duration)
	for i := range streams {
		clients.Go(func() {
			for faults[i] == nil && time.Now().Before(end) {
				var n int64
				n, faults[i] = once(ctx, addr, "image", config, imageSize, end)
				totals[i] += n
			}
		})
	}
	clients.Wait()
	took, cpu := time.Since(begun).Seconds(), p.CPU()-used
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	total := float64(totals[0] + totals[1])
	return rounds.Sample{"cpu_s_per_gib": cpu / (total / (1 << 30)), "gbit_per_s": total * 8 / 1e9 / took}, ctx.Err()
}

// once downloads a file, or what can be had of it until some time.
func once(
	ctx context.Context, addr, file string, config *tls.Config, size int64, end time.Time,
) (int64, error) {
	return onceFrom(ctx, nil, addr, file, config, size, end)
}

// onceFrom is once from an address of ours; nil is any.
func onceFrom(
	ctx context.Context, from *net.TCPAddr, addr, file string, config *tls.Config, size int64, end time.Time,
) (int64, error) {
	conn, err := ask(ctx, from, addr, file, config)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	n, err := discard(conn, end)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, nil
	case !errors.Is(err, io.EOF):
		return n, err
	case n < size:
		return n, fmt.Errorf("failed to download: the end came after %d bytes of %d", n, size)
	}
	return n, nil
}

// quiet is how long nothing may come of a file that is waited for.
const quiet = 20 * time.Second

// whole downloads a file, however long it takes, as long as some of it comes.
func whole(ctx context.Context, addr, file string, size int64) error {
	conn, err := ask(ctx, nil, addr, file, nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	return onward(size, func() (int64, error) { return discard(conn, time.Now().Add(quiet)) })
}

// onward reads until the end. Next reads until the end or its time is over: it is called again as long as something
// came in its time.
func onward(size int64, next func() (int64, error)) error {
	for total := int64(0); ; {
		n, err := next()
		total += n
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && n > 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("failed to download: nothing came for %s, %d bytes of %d had come", quiet, total, size)
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("failed to download: after %d bytes of %d: %w", total, size, err)
		case total < size:
			return fmt.Errorf("failed to download: the end came after %d bytes of %d", total, size)
		default:
			return nil
		}
	}
}

// machines of the rack that boots at once.
const machines = 100

// rack has a hundred machines download a file at once. A candidate is fair if all get the same: Jain's index of their
// rates, 1 at best, and how much longer than the median the slowest takes.
func (b *bench) rack(ctx context.Context, p *process.Process) (rounds.Sample, error) {
	var clients sync.WaitGroup
	seconds, faults := make([]float64, machines), make([]error, machines)
	used := p.CPU()
	begun := time.Now()
	for i := range machines {
		clients.Go(func() {
			faults[i] = whole(ctx, plainAddr, "boot", bootSize)
			seconds[i] = time.Since(begun).Seconds()
		})
	}
	clients.Wait()
	cpu := p.CPU() - used
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	slices.Sort(seconds)
	return rounds.Sample{
		"jain":                jain(seconds),
		"slowest_over_median": seconds[machines-1] / rounds.Median(seconds),
		"median_s":            rounds.Median(seconds),
		"cpu_s_per_gib":       cpu / (float64(machines) * bootSize / (1 << 30)),
	}, ctx.Err()
}

// jain is R. Jain's index of fairness of the rates of machines that got the same in so many seconds each.
func jain(seconds []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, s := range seconds {
		sum += 1 / s
		squares += 1 / s / s
	}
	return sum * sum / (float64(len(seconds)) * squares)
}
