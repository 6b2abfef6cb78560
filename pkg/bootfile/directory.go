// Package bootfile finds the files that firmware asks for by TFTP, by names as firmware writes them, in a directory of
// the artifact volume, and reads them without keeping an event loop waiting for a disk. docs/design/decisions.md has
// the decisions.
package bootfile

import (
	"cmp"
	"context"
	"log/slog"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
)

const (
	// lookEvery is how often the directory's name is looked at, and listEvery how often the files of a directory without
	// a manifest are listed.
	lookEvery, listEvery = time.Second, 5 * time.Second
	// diskReaders is how many goroutines may wait for the disk at a time.
	diskReaders = 8
)

// Config makes a [Directory].
type Config struct {
	// Directory holds the files; it may be a symbolic link that is replaced, as fetch does. Path is where in it the boot
	// files are, "." for all of it.
	Directory, Path string
	// Logger may be nil.
	Logger *slog.Logger
}

// Directory finds boot files.
type Directory struct {
	log     *loglimit.Limiter
	places  chan struct{}
	readers sync.WaitGroup

	mu      sync.Mutex
	config  Config
	changed chan struct{} // the config was
	current *index        // nil until the directory was read
}

// New makes a directory, of which Run reads what is in it.
func New(c Config) *Directory {
	c.Path = below(c.Path)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Directory{
		config: c, log: loglimit.New(c.Logger, 1, time.Minute), places: make(chan struct{}, diskReaders),
		changed: make(chan struct{}, 1),
	}
}

// below is a path without what means nothing in it; none stays none.
func below(p string) string {
	if p == "" {
		return ""
	}
	return path.Clean(p)
}

// Set changes where the files are; an empty Path is nowhere. Files that are being read stay as they are.
func (d *Directory) Set(c Config) {
	c.Path = below(c.Path)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.config.Directory == c.Directory && d.config.Path == c.Path {
		return
	}
	d.config.Directory, d.config.Path = c.Directory, c.Path
	d.current.close()
	d.current = nil
	select {
	case d.changed <- struct{}{}:
	default:
	}
}

// Run follows the directory until ctx is done, and waits for the goroutines that read.
func (d *Directory) Run(ctx context.Context) {
	defer d.readers.Wait()
	for {
		var again <-chan time.Time
		if d.wanted() {
			d.look(time.Now())
			again = time.After(lookEvery)
		}
		select {
		case <-ctx.Done():
			return
		case <-d.changed:
		case <-again:
		}
	}
}

// wanted reports whether there is a directory to be looked at.
func (d *Directory) wanted() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config.Path != ""
}

// look reads the directory if it is another one, or if it is time to list it again.
func (d *Directory) look(now time.Time) {
	d.mu.Lock()
	c, known := d.config, d.current
	d.mu.Unlock()
	fresh, err := known.again(c.Directory, c.Path, now)
	if err != nil {
		d.log.Warn("boot files unavailable", func() []any { return []any{"directory", c.Directory, "error", err} })
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case fresh == known:
		return
	case c.Directory != d.config.Directory || c.Path != d.config.Path:
		fresh.close()
		return
	}
	if twice := fresh.ambiguous(); twice != "" {
		d.log.Warn("boot files differ by case only", func() []any { return []any{"file", twice} })
	}
	known.close()
	d.current = fresh
}

// Ready reports whether the directory was read, so that what Find does not find is not there.
func (d *Directory) Ready() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.config.Path == "" || d.current != nil
}

// Find finds the file that a client means. It does not wait, and does not keep the name that was asked for, which may
// be a view of a datagram. The file has to be closed; nil where there is none.
func (d *Directory) Find(asked string) *File {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.current
	if x == nil {
		return nil
	}
	name, ok := x.find(asked)
	if !ok {
		return nil
	}
	f := x.open[name]
	if f == nil {
		name = strings.Clone(name)
		f = &File{directory: d, index: x, name: name, entry: x.files[name]}
		x.open[name] = f
	}
	f.readers++
	return f
}
