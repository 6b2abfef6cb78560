// Package watch tells when a settings file changes.
package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long after a change of the file it is read: an editor or a ConfigMap's update is several events.
const settle = 100 * time.Millisecond

// File is a file to watch.
type File struct {
	path     string
	requests <-chan os.Signal
	log      *slog.Logger
	last     []byte
}

// New makes a file to watch; an empty path is none. Call it before the file is loaded for the first time: then a change
// that comes before Run does is not missed. Requests ask for a reload whether the file changed or not: SIGHUP. The logger
// may be nil.
func New(path string, requests <-chan os.Signal, log *slog.Logger) *File {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	f := &File{path: path, requests: requests, log: log}
	if path != "" {
		f.last, _ = os.ReadFile(path)
	}
	return f
}

// Run calls reload whenever the file's text has changed since New, and on request, until ctx is done.
func (f *File) Run(ctx context.Context, reload func()) error {
	var events chan fsnotify.Event
	var failures chan error
	if f.path != "" {
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("failed to watch file %s: %w", f.path, err)
		}
		defer watcher.Close()
		// The directory, not the file: a ConfigMap's file is a link that is replaced, and so are most editors'.
		if err := watcher.Add(filepath.Dir(f.path)); err != nil {
			return fmt.Errorf("failed to watch directory of file %s: %w", f.path, err)
		}
		events, failures = watcher.Events, watcher.Errors
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.requests:
			f.log.Info("reload asked for", "path", f.path)
			reload()
		case <-events:
			timer.Reset(settle)
		case err := <-failures:
			f.log.Warn("failed to watch file", "path", f.path, "error", err)
			timer.Reset(settle)
		case <-timer.C:
			if f.changed() {
				reload()
			}
		}
	}
}

// changed is whether the file's text differs from the one that was read last.
func (f *File) changed() bool {
	if f.path == "" {
		return false
	}
	text, err := os.ReadFile(f.path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return true // let the reload say why
	}
	if err != nil || bytes.Equal(text, f.last) {
		return false
	}
	f.last = text
	return true
}
