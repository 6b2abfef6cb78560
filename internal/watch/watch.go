// Package watch reads the files that a program is set by, and tells when their texts change.
//
// The files are small, so it reads them again and again rather than be told by the kernel: reading notices every way of
// replacing a file, the renamed directory link of a ConfigMap or a Secret as well as a file that is written in place,
// and needs none of the node's few inotify instances.
package watch

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"time"
)

const (
	// every is how often files are read.
	every = time.Second
	// settle is how long the files have to stay as they are before a change counts: a certificate and its key are
	// written one after the other. Files that keep changing count after settleMost times.
	settle     = 100 * time.Millisecond
	settleMost = 20
	// maxSize bounds a file, in bytes.
	maxSize = 16 << 20
)

// Read reads a file. One that is larger than 16 MiB is an error.
func Read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("failed to read file: %w", err)
	}
	if len(text) > maxSize {
		return nil, fmt.Errorf("failed to read file: %s is larger than %d bytes", path, maxSize)
	}
	return text, nil
}

// Files are files that are put in force together. They are used by one goroutine at a time.
type Files struct {
	// Paths may be none.
	Paths []string
	// Requests ask for a reload whether the files changed or not: SIGHUP. It may be nil.
	Requests <-chan os.Signal

	read bool
	sum  [sha256.Size]byte // of the texts that were read last, or of the error
}

// New makes a file to watch; an empty path is none. Call it before the file is loaded for the first time: then a change
// that comes before Run does is not missed.
func New(path string, requests <-chan os.Signal) *Files {
	f := &Files{Requests: requests}
	if path != "" {
		f.Paths = []string{path}
	}
	_, _, _ = f.Read() // the program's own loading says what is wrong
	return f
}

// Read reads the files, and tells whether their texts, or the error, differ from those of the Read before.
func (f *Files) Read() (texts [][]byte, changed bool, err error) {
	sum := sha256.New()
	for _, path := range f.Paths {
		text, failed := Read(path)
		if failed != nil {
			err = failed
			fmt.Fprint(sum, "error: ", err)
			break
		}
		texts = append(texts, text)
		own := sha256.Sum256(text)
		sum.Write(own[:])
	}
	now := [sha256.Size]byte(sum.Sum(nil))
	changed = !f.read || now != f.sum
	f.read, f.sum = true, now
	if err != nil {
		return nil, changed, err
	}
	return texts, changed, nil
}

// Run calls reload when the files have changed since they were read last, and at each request, until ctx is done.
func (f *Files) Run(ctx context.Context, reload func()) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.Requests:
			reload()
		case <-ticker.C:
			if f.changed(ctx) {
				reload()
			}
		}
	}
}

// changed tells whether the files have changed, once they have settled.
func (f *Files) changed(ctx context.Context) bool {
	_, changed, _ := f.Read()
	for again, tries := changed, 0; again && tries < settleMost; tries++ {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(settle):
		}
		_, again, _ = f.Read()
	}
	return changed
}

// Task reloads what files say until it is told to end. It is a daemon.Task, and always ready: with wrong files the
// former texts stay in force.
type Task struct {
	Name   string
	Files  *Files
	Reload func(context.Context)
}

// Run implements daemon.Task.
func (t *Task) Run(ctx context.Context) error {
	t.Files.Run(ctx, func() { t.Reload(ctx) })
	return nil
}

// Ready implements daemon.Task.
func (t *Task) Ready() error { return nil }

// String implements daemon.Task.
func (t *Task) String() string { return t.Name }
