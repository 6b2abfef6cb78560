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
	// Path of the file; empty watches none.
	Path string
	// Requests ask for a reload whether the file changed or not: SIGHUP.
	Requests <-chan os.Signal
	// Logger may be nil.
	Logger *slog.Logger

	last []byte
}

// Run calls reload whenever the file's text has changed, and on request, until ctx is done.
func (f *File) Run(ctx context.Context, reload func()) error {
	if f.Logger == nil {
		f.Logger = slog.New(slog.DiscardHandler)
	}
	var events chan fsnotify.Event
	var failures chan error
	if f.Path != "" {
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("failed to watch file %s: %w", f.Path, err)
		}
		defer watcher.Close()
		// The directory, not the file: a ConfigMap's file is a link that is replaced, and so are most editors'.
		if err := watcher.Add(filepath.Dir(f.Path)); err != nil {
			return fmt.Errorf("failed to watch directory of file %s: %w", f.Path, err)
		}
		events, failures = watcher.Events, watcher.Errors
		f.last, _ = os.ReadFile(f.Path)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-f.Requests:
			f.Logger.Info("reload asked for", "path", f.Path)
			reload()
		case <-events:
			timer.Reset(settle)
		case err := <-failures:
			f.Logger.Warn("failed to watch file", "path", f.Path, "error", err)
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
	if f.Path == "" {
		return false
	}
	text, err := os.ReadFile(f.Path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return true // let the reload say why
	}
	if err != nil || bytes.Equal(text, f.last) {
		return false
	}
	f.last = text
	return true
}
