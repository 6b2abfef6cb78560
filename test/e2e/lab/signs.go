package lab

import (
	"context"
	"path/filepath"
	"time"

	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// Starved is how long the process's threads have waited for a processor; see [process.Starved].
func (p *Proc) Starved() time.Duration { return process.Starved(p.Pid()) }

// Line waits for a line of a file, such as a log. It gives up when the file ends with the same line for half a minute.
func Line(ctx context.Context, path string, matches func(line string) bool) error {
	ctx, watch := progress.Begin(ctx, progress.Patience{
		Quiet: readyTimeout, Signs: []func() string{process.LastLine(filepath.Base(path), path)},
	})
	defer watch.End()
	return Tail(ctx, path, func(line string) bool { return !matches(line) })
}

// patience is how long a program of the lab may be quiet: its log is a sign of progress.
func (l *Lab) patience(name string) progress.Patience {
	return progress.Patience{Quiet: readyTimeout, Signs: []func() string{process.LastLine(name, l.LogPath(name))}}
}
