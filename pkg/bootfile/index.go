package bootfile

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/artifacts"
)

// mostFiles is how many files of a directory are found; the sets of an artifact volume have as many at most.
const mostFiles = 10_000

// index has the names of a directory's files as they were at one time.
type index struct {
	info     fs.FileInfo // of the directory
	listed   bool        // by a manifest: nothing changes
	read     time.Time   // when its files were listed last
	path     string      // of the boot files below the directory
	root     *os.Root    // of the boot files; nil where a release has none
	files    map[string]entry
	folded   map[string]string // names of files by what fold makes of them; "" where two become one
	complete map[string]bool   // machines, by MAC, whose directories have a loader

	open map[string]*File // guarded by the Directory's mu
}

// entry is a file as it was when the index was made.
type entry struct {
	size     int64
	modified time.Time // zero where the manifest has the file
}

// again is the index of the files below a path of the directory now: the same index where no file has changed, or where
// it is not yet time to list them again. The index may be nil.
func (x *index) again(directory, below string, now time.Time) (*index, error) {
	info, err := os.Stat(directory)
	if err != nil {
		return nil, fmt.Errorf("failed to find directory of boot files: %w", err)
	}
	if x != nil && os.SameFile(info, x.info) && (x.listed || now.Sub(x.read) < listEvery) {
		return x, nil
	}
	fresh, err := readIndex(directory, below)
	if err != nil {
		return nil, err
	}
	if x != nil && fresh.same(x) {
		fresh.close()
		fresh = x
	}
	fresh.read = now
	return fresh, nil
}

// readIndex reads what is below a path in the directory, "." for all of it.
func readIndex(directory, below string) (*index, error) {
	top, err := os.OpenRoot(directory)
	if err != nil {
		return nil, fmt.Errorf("failed to open directory of boot files: %w", err)
	}
	defer top.Close()
	x := &index{path: below, files: map[string]entry{}, open: map[string]*File{}}
	if x.info, err = top.Stat("."); err == nil {
		err = x.list(top)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to list boot files: %w", err)
	}
	x.fold()
	return x, nil
}

// list finds the files: those of the manifest, or, in a directory that was filled by hand, those that are there.
func (x *index) list(top *os.Root) error {
	manifest, err := artifacts.ReadManifest(top.FS())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	x.listed = err == nil
	if x.root, err = top.OpenRoot(x.path); err != nil {
		if x.listed && errors.Is(err, fs.ErrNotExist) {
			return nil // the release has no boot files
		}
		return err
	}
	if !x.listed {
		if err = fs.WalkDir(x.root.FS(), ".", x.walk); err != nil {
			x.close()
		}
		return err
	}
	for name, f := range manifest.Files {
		if x.path == "." {
			x.files[name] = entry{size: f.Size}
		} else if rest, ok := strings.CutPrefix(name, x.path+"/"); ok {
			x.files[rest] = entry{size: f.Size}
		}
	}
	return nil
}

// walk takes what is a file, or a link to one that is below the root as well. Names that begin with a dot are hidden.
func (x *index) walk(name string, d fs.DirEntry, err error) error {
	switch {
	case err != nil:
		return err
	case d.Name()[0] == '.' && name != ".":
		if d.IsDir() {
			return fs.SkipDir
		}
		return nil
	case d.IsDir():
		return nil
	case len(x.files) == mostFiles:
		return fmt.Errorf("more than %d files", mostFiles)
	}
	if info, err := x.root.Stat(name); err == nil && info.Mode().IsRegular() {
		x.files[name] = entry{info.Size(), info.ModTime()}
	}
	return nil
}

// close gives the directory back. Files that are open stay so. The index may be nil.
func (x *index) close() {
	if x != nil && x.root != nil {
		_ = x.root.Close()
	}
}

// fold makes the ways to find files by other spellings of their names.
func (x *index) fold() {
	x.folded, x.complete = map[string]string{}, map[string]bool{}
	for name := range x.files {
		key := fold(name)
		if _, taken := x.folded[key]; taken {
			x.folded[key] = ""
		} else {
			x.folded[key] = name
		}
		if first, rest, deeper := strings.Cut(name, "/"); deeper && isLoader(rest) {
			if mac, ok := parseMAC(first); ok {
				x.complete[mac] = true
			}
		}
	}
}

// ambiguous is a spelling that two files have, for a log line; "" where there is none.
func (x *index) ambiguous() string {
	for key, name := range x.folded {
		if name == "" {
			return key
		}
	}
	return ""
}

// same reports whether two indexes have the same files, as far as size and time tell.
func (x *index) same(other *index) bool {
	return os.SameFile(x.info, other.info) && x.path == other.path && maps.Equal(x.files, other.files)
}

// find finds the file that a client means: by its exact name, then by the name as firmware may write it, then without
// the trace that Smee adds; below a machine's MAC also among the files of all.
func (x *index) find(asked string) (name string, ok bool) {
	if _, ok := x.files[asked]; ok {
		return asked, true
	}
	cleaned, ok := clean(asked)
	if !ok {
		return "", false
	}
	if name, ok = x.spelled(cleaned); ok {
		return name, true
	}
	if plain, ok := untraced(cleaned); ok {
		return x.spelled(plain)
	}
	return "", false
}

// spelled finds a file by its name in any case, or by that behind a machine's MAC.
func (x *index) spelled(name string) (string, bool) {
	if _, ok := x.files[name]; ok {
		return name, true
	}
	if found := x.folded[fold(name)]; found != "" {
		return found, true
	}
	first, rest, deeper := strings.Cut(name, "/")
	mac, ok := parseMAC(first)
	if !deeper || !ok || x.complete[mac] {
		return "", false
	}
	if _, ok := x.files[rest]; ok {
		return rest, true
	}
	found := x.folded[fold(rest)]
	return found, found != ""
}
