package storm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/storm/machines"
)

// Storm switches all machines on and waits for the last. It calls each with what the machines say; each may be nil. The
// error is about what is not a machine's.
func (s *Site) Storm(ctx context.Context, each func(machines.Line)) (*Result, error) {
	s.storms++
	read, write := io.Pipe()
	r := &Result{Machines: make([]machines.Outcome, s.opts.Machines)}
	before, err := s.usage()
	if err != nil {
		return nil, err
	}
	peaks := s.watchMemory()
	begin := time.Now()
	proc, err := s.Lab.Start(lab.Process{
		Name: fmt.Sprintf("machines-%d", s.storms), Role: s.role, Path: s.machines, Args: []string{s.plan}, Stdout: write,
	})
	if err != nil {
		peaks.end()
		return nil, err
	}
	heard := make(chan error, 1)
	go func() { heard <- r.hear(read, each) }()
	var failure error
	select {
	case <-proc.Done():
	case failure = <-s.Lab.Failed():
		_ = s.Lab.Kill(proc.Name())
	case <-ctx.Done():
		failure = context.Cause(ctx)
		_ = s.Lab.Kill(proc.Name())
	}
	after, err := s.usage()
	r.Seconds = time.Since(begin).Seconds()
	r.PeakProxy, r.PeakRelay = peaks.end()
	_ = write.Close()
	err = errors.Join(failure, err, <-heard)
	if err == nil && !r.ended {
		err = fmt.Errorf("the machines ended early, see %s", proc.LogPath())
	}
	r.Used = after.less(before)
	return r, err
}

// hear reads what the machines say.
func (r *Result) hear(from io.Reader, each func(machines.Line)) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var l machines.Line
		if json.Unmarshal(lines.Bytes(), &l) != nil {
			continue // of the standard error, which is in the log
		}
		switch {
		case l.Outcome != nil && l.Outcome.Machine < len(r.Machines):
			r.Machines[l.Outcome.Machine] = *l.Outcome
		case l.End != nil:
			r.MachinesCPU, r.ended = l.End.CPU, true
		}
		if each != nil {
			each(l)
		}
	}
	return lines.Err()
}
