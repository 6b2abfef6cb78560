package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/pkg/artifacts"
)

// Names on the volume.
const (
	nameCurrent     = "current"
	nameGenerations = "generations"
	namePartial     = "partial"
	nameLock        = "lock"
	prefixStaging   = ".new-"
)

// volume is the directory that holds everything, locked.
type volume struct {
	dir  string
	log  *slog.Logger
	lock *os.File
}

// lockWait is how long another writer is waited for.
const lockWait = 30 * time.Second

// open makes the volume's directories and locks it.
func (v *volume) open(ctx context.Context) error {
	for _, name := range []string{"", nameGenerations, namePartial} {
		if err := os.MkdirAll(v.path(name), 0o755); err != nil {
			return fmt.Errorf("failed to make directory: %w", err)
		}
	}
	f, err := os.OpenFile(v.path(nameLock), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return fmt.Errorf("failed to open lock: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockWait, errLocked)
	defer cancel()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			v.lock = f
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			_ = f.Close()
			return fmt.Errorf("failed to lock volume: %w", err)
		}
		select {
		case <-ctx.Done():
			_ = f.Close()
			return fmt.Errorf("failed to lock volume: %w", context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (v *volume) close() { _ = v.lock.Close() } // the lock goes with it

func (v *volume) path(names ...string) string {
	return filepath.Join(append([]string{v.dir}, names...)...)
}

// manifest reads the manifest of the served generation. A missing or damaged one is empty.
func (v *volume) manifest() *artifacts.Manifest {
	m, err := artifacts.ReadManifest(os.DirFS(v.path(nameCurrent)))
	if err == nil {
		return m
	}
	if !errors.Is(err, fs.ErrNotExist) {
		v.log.Error("manifest damaged", "generation", nameCurrent, "error", err)
	}
	return &artifacts.Manifest{}
}

// verify reads every served file, and returns those that are not what the manifest says.
func (v *volume) verify(ctx context.Context, m *artifacts.Manifest) ([]string, error) {
	if len(m.Files) == 0 {
		return nil, nil
	}
	root, err := os.OpenRoot(v.path(nameCurrent))
	if err != nil {
		return nil, fmt.Errorf("failed to open generation: %w", err)
	}
	defer root.Close()
	var damaged []string
	for name, want := range m.Files {
		got, err := hashFile(ctx, root, name)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err == nil && got.SHA256 != want.SHA256 {
			err = fmt.Errorf("%w: want sha256:%s, got sha256:%s", errDigest, want.SHA256, got.SHA256)
		}
		if err != nil {
			damaged = append(damaged, name)
			v.log.Error("file damaged", "file", name, "set", want.Set, "error", err)
		}
	}
	return damaged, nil
}

// remove takes a damaged file away, so that nobody boots it.
func (v *volume) remove(name string) error {
	root, err := os.OpenRoot(v.path(nameCurrent))
	if err != nil {
		return fmt.Errorf("failed to open generation: %w", err)
	}
	defer root.Close()
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("failed to remove damaged file: %w", err)
	}
	return nil
}

// stage makes the directory that is to become a generation.
func (v *volume) stage() (*os.Root, error) {
	dir, err := os.MkdirTemp(v.path(nameGenerations), prefixStaging)
	if err != nil {
		return nil, fmt.Errorf("failed to make directory of new files: %w", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, fmt.Errorf("failed to open up directory of new files: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("failed to open directory of new files: %w", err)
	}
	return root, nil
}

// publish makes the staged files what is served. Files are durable already; directories and links become so here.
func (v *volume) publish(staged *os.Root, m *artifacts.Manifest) error {
	text, err := m.Encode()
	if err != nil {
		return err
	}
	_, err = writeFile(context.Background(), staged, artifacts.ManifestName, bytes.NewReader(text))
	if err != nil {
		return err
	}
	err = fs.WalkDir(staged.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return syncDir(filepath.Join(staged.Name(), name))
	})
	if err != nil {
		return fmt.Errorf("failed to sync new files: %w", err)
	}
	sum := sha256.Sum256(text)
	id := m.Created.UTC().Format("20060102T150405.000") + "-" + hex.EncodeToString(sum[:4])
	if err := os.Rename(staged.Name(), v.path(nameGenerations, id)); err != nil {
		return fmt.Errorf("failed to name generation: %w", err)
	}
	if err := syncDir(v.path(nameGenerations)); err != nil {
		return err
	}
	return v.point(filepath.Join(nameGenerations, id))
}

// point has another generation served: it replaces the link in one step.
func (v *volume) point(target string) error {
	fresh := v.path(nameCurrent + ".new")
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("failed to remove old link: %w", err)
	}
	if err := os.Symlink(target, fresh); err != nil {
		return fmt.Errorf("failed to make link: %w", err)
	}
	if err := os.Rename(fresh, v.path(nameCurrent)); err != nil {
		return fmt.Errorf("failed to switch link: %w", err)
	}
	return syncDir(v.dir)
}

// collect removes the generations that are not served, and the leftovers of interrupted runs.
func (v *volume) collect() {
	current, err := os.Readlink(v.path(nameCurrent))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		v.clear(nameGenerations, func(entry fs.DirEntry) bool { return entry.Name() != filepath.Base(current) })
	}
	// Downloads that were published share their bytes with what is served, and must not be written to.
	v.clear(namePartial, func(entry fs.DirEntry) bool {
		info, err := entry.Info()
		if err != nil {
			return false
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		return ok && stat.Nlink > 1
	})
}

// clear removes entries of a directory of the volume.
func (v *volume) clear(name string, unwanted func(fs.DirEntry) bool) {
	entries, err := os.ReadDir(v.path(name))
	for _, entry := range entries {
		if unwanted(entry) {
			err = errors.Join(err, os.RemoveAll(v.path(name, entry.Name())))
		}
	}
	if err != nil {
		v.log.Warn("failed to clear volume", "error", err)
	}
}

// clearPartial removes downloads that nobody waits for any more.
func (v *volume) clearPartial() {
	v.clear(namePartial, func(fs.DirEntry) bool { return true })
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("failed to open directory: %w", err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) { // some file systems have no need of it
		return fmt.Errorf("failed to sync directory: %w", err)
	}
	return nil
}
