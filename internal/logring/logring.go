// Package logring stands between a program's log and whoever reads it. Nobody who logs waits for the reader: lines
// gather in bounded memory, and one goroutine writes them. Those for which there is no room, or no reader, are lost;
// they are counted, and told of once the reader is back.
package logring

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"syscall"
	"time"
)

const (
	// size is how much may wait to be written, in bytes.
	size = 1 << 20
	// pieceSize is how much is written at once, but for a line that is longer. It is little, since a write to a pipe
	// returns only when the reader has made room for all of it.
	pieceSize = 4 << 10
	// mostSpare is how large a buffer is kept.
	mostSpare = 64 << 10
	// shortPause and longPause are the first and the longest wait before a failed write is tried again.
	shortPause, longPause = 10 * time.Millisecond, 250 * time.Millisecond
)

// Ring is an io.Writer for log lines: each call of Write is one line, with its end.
type Ring struct {
	out     io.Writer
	tell    func(lost uint64)
	givenUp chan struct{} // closed by Close, when it has waited long enough
	done    chan struct{} // closed when nothing is written any more

	mu     sync.Mutex
	filled sync.Cond // lines or closed has changed
	lines  []byte    // that wait for their turn
	taken  int       // bytes of those whose turn it is
	lost   uint64
	told   uint64 // how much of lost was told
	closed bool
	hurry  bool // what waits is given up, but for what is told of it
}

// New makes a ring for lines that are written to out. Its goroutine calls tell, which may log by way of the ring, with
// the number of lines that were lost since the call before, when the reader reads again.
func New(out io.Writer, tell func(lost uint64)) *Ring {
	r := &Ring{out: out, tell: tell, givenUp: make(chan struct{}), done: make(chan struct{})}
	r.filled.L = &r.mu
	go r.run()
	return r
}

// Write implements io.Writer. It does not wait, and always returns the line's length: a line that is lost is no fault
// of the caller's.
func (r *Ring) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken+len(r.lines)+len(line) > size {
		r.lost++
		return len(line), nil
	}
	r.lines = append(r.lines, line...)
	r.filled.Signal()
	return len(line), nil
}

// Lost is how many lines were lost since the start.
func (r *Ring) Lost() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lost
}

// Close returns when all lines are written. It waits for that so long, and then once more so long for the line that
// tells how many were lost. It is called once, when nobody logs any more. A write that still hangs then cannot be
// ended: its goroutine lasts as long as the process.
func (r *Ring) Close(wait time.Duration) {
	r.mu.Lock()
	r.closed = true
	r.filled.Signal()
	r.mu.Unlock()
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-r.done:
		return
	case <-timer.C:
	}
	r.mu.Lock()
	r.hurry = true
	r.mu.Unlock()
	timer.Reset(wait)
	select {
	case <-r.done:
	case <-timer.C:
		close(r.givenUp)
	}
}

// run writes lines until the ring is closed and empty.
func (r *Ring) run() {
	defer close(r.done)
	var lines []byte
	for heard := true; ; {
		taken, lost := r.take(lines, heard)
		if lost > 0 {
			r.tell(lost)
		}
		if len(taken) == 0 && lost == 0 {
			return
		}
		for lines = taken; len(taken) > 0; {
			piece := pieceOf(taken)
			heard = r.write(piece)
			taken = r.wrote(heard, piece, taken[len(piece):])
		}
	}
}

// take waits for lines and takes all there are; none where the ring is closed and empty. lost is how many were lost
// behind the last ones; 0 while the reader is gone, who could not be told. spare is a slice for the next lines.
func (r *Ring) take(spare []byte, heard bool) (lines []byte, lost uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.lines) == 0 && !r.closed {
		r.filled.Wait()
	}
	if heard {
		lost, r.told = r.lost-r.told, r.lost
	}
	if cap(spare) > mostSpare { // of a time with many lines
		spare = nil
	}
	lines, r.lines, r.taken = r.lines, spare[:0], len(r.lines)
	return lines, lost
}

// wrote makes room for what was written, or could not be. It returns what is left to be written of the lines behind it.
func (r *Ring) wrote(ok bool, lines, rest []byte) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken -= len(lines); !ok {
		r.lose(lines)
	}
	if r.hurry {
		r.hurry = false
		r.lose(rest)
		r.lose(r.lines)
		rest, r.lines, r.taken = nil, r.lines[:0], 0
	}
	return rest
}

func (r *Ring) lose(lines []byte) { r.lost += uint64(bytes.Count(lines, []byte("\n"))) }

// pieceOf is as many whole lines as are written at once, and at least one.
func pieceOf(lines []byte) []byte {
	if len(lines) <= pieceSize {
		return lines
	}
	if end := bytes.LastIndexByte(lines[:pieceSize], '\n'); end >= 0 {
		return lines[:end+1]
	}
	return lines[:bytes.IndexByte(lines, '\n')+1]
}

// write writes whole lines: what is left of one waits until it can be written, so that none is torn. It is false where
// the reader is gone. A reader that comes later, of a named pipe, begins with a whole line.
func (r *Ring) write(lines []byte) bool {
	for pause := shortPause; ; {
		n, err := r.out.Write(lines)
		lines = lines[n:]
		switch {
		case len(lines) == 0:
			return true
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
			return false
		case n > 0:
			pause = shortPause
		}
		// The disk is full, or a pipe that another process has made non-blocking.
		select {
		case <-r.givenUp:
			return false
		case <-time.After(pause):
			pause = min(2*pause, longPause)
		}
	}
}
