package machines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/netboot"
)

// fleet is all machines of a plan.
type fleet struct {
	*Plan
	segment                   *netboot.Segment
	loader, kernel, initramfs []byte
	pieces                    sync.Pool // of *[pieceSize]byte
	start                     time.Time

	mu  sync.Mutex
	out *json.Encoder
	err error
}

// pieceSize is as much of a file as a machine reads at once.
const pieceSize = 256 << 10

// Run boots the machines of a plan in the calling process's network namespace, and writes a [Line] for each step.
func Run(ctx context.Context, p *Plan, out io.Writer) error {
	f := &fleet{Plan: p, out: json.NewEncoder(out), pieces: sync.Pool{New: func() any { return new([pieceSize]byte) }}}
	for _, file := range []struct {
		path string
		to   *[]byte
	}{{p.Loader, &f.loader}, {p.Kernel, &f.kernel}, {p.Initramfs, &f.initramfs}} {
		content, err := os.ReadFile(file.path)
		if err != nil {
			return fmt.Errorf("failed to read what machines have to get: %w", err)
		}
		*file.to = content
	}
	var err error
	if f.segment, err = netboot.OpenSegment(p.Interface); err != nil {
		return err
	}
	defer func() { _ = f.segment.Close() }()
	f.start = time.Now()
	var all sync.WaitGroup
	for i := range p.Members {
		if !f.sleepUntil(ctx, f.start.Add(p.Spread*time.Duration(i)/time.Duration(len(p.Members)))) {
			break
		}
		all.Go(func() { f.boot(ctx, i) })
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		return fmt.Errorf("failed to read use of processor: %w", err)
	}
	f.say(Line{End: &End{CPU: time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()}})
	return f.err
}

func (f *fleet) sleepUntil(ctx context.Context, at time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(time.Until(at)):
		return true
	}
}

func (f *fleet) say(l Line) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = errors.Join(f.err, f.out.Encode(l))
}

func (f *fleet) since() float64 { return time.Since(f.start).Seconds() }

// boot takes one machine from power-on to the end.
func (f *fleet) boot(ctx context.Context, i int) {
	m, err := newMachine(f, i)
	if err == nil {
		err = m.run(ctx)
		m.close()
	}
	outcome := &Outcome{Machine: i, Finished: err == nil, Seconds: f.since(), Retries: m.retries, Wrong: m.wrong}
	if err != nil {
		outcome.Failure = err.Error()
	}
	f.say(Line{Outcome: outcome})
}
