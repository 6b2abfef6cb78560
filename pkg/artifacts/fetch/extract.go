package fetch

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/tinkerbell/stack/pkg/artifacts"
)

// extractor takes the files out of one archive, as if it were hostile: of its entries only plain files, directories
// and links to files of the same archive, and of those only name and bytes.
type extractor struct {
	root     *os.Root
	dir      string // below root
	maxBytes int64
	maxFiles int

	files map[string]artifacts.File // by path below root
	links map[string]string
	bytes int64
}

// extract returns the files by their path below root; they are durable.
func (x *extractor) extract(ctx context.Context, archive string) (map[string]artifacts.File, error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, fmt.Errorf("failed to open archive: %w", err)
	}
	defer f.Close()
	x.files, x.links = map[string]artifacts.File{}, map[string]string{}
	var source io.Reader = f
	magic := make([]byte, 2)
	if n, _ := f.ReadAt(magic, 0); n == 2 && magic[0] == 0x1f && magic[1] == 0x8b {
		unzip, err := gzip.NewReader(f)
		if err != nil {
			return x.files, fmt.Errorf("%w: %w", errArchive, err)
		}
		defer unzip.Close()
		source = unzip
	}
	entries := tar.NewReader(source)
	for n := 1; ; n++ {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return x.files, fmt.Errorf("%w: %w", errArchive, err)
		}
		if n > x.maxFiles {
			return x.files, fmt.Errorf("%w: more than %d entries", errArchive, x.maxFiles)
		}
		if err := x.entry(ctx, header, entries); err != nil {
			return x.files, err
		}
	}
	if err := x.link(); err != nil {
		return x.files, err
	}
	if len(x.files) == 0 {
		return x.files, fmt.Errorf("%w: it holds no file", errArchive)
	}
	return x.files, nil
}

func (x *extractor) entry(ctx context.Context, header *tar.Header, body io.Reader) error {
	name, err := x.name(header.Name)
	if err != nil {
		return err
	}
	switch header.Typeflag {
	case tar.TypeDir, tar.TypeXGlobalHeader:
		return nil
	case tar.TypeReg:
	case tar.TypeSymlink, tar.TypeLink:
		target := header.Linkname
		if header.Typeflag == tar.TypeSymlink && !path.IsAbs(target) {
			target = path.Join(path.Dir(path.Clean(header.Name)), target)
		}
		if target, err = x.name(target); err != nil {
			return err
		}
		x.links[name] = target
		return nil
	default:
		return fmt.Errorf("%w: %q is a device or another special file", errArchive, header.Name)
	}
	if x.bytes += header.Size; x.bytes > x.maxBytes || header.Size < 0 {
		return fmt.Errorf("%w: its files are larger than %s", errArchive, size(x.maxBytes))
	}
	if name == "" {
		return nil
	}
	if _, twice := x.files[name]; twice {
		return fmt.Errorf("%w: it holds %q twice", errArchive, header.Name)
	}
	file, err := writeFile(ctx, x.root, name, body)
	if file.Size >= 0 {
		x.files[name] = file
	}
	if errors.Is(err, errRead) {
		return fmt.Errorf("%w: %w", errArchive, err)
	}
	return err
}

// name is where an entry goes; empty where it is never served (a name that begins with a dot) and so left out.
func (x *extractor) name(name string) (string, error) {
	clean := path.Clean(name)
	if path.IsAbs(name) || clean == ".." || strings.HasPrefix(clean, "../") {
		return "", fmt.Errorf("%w: %q leads out of it", errArchive, name)
	}
	if clean == "." {
		return "", nil
	}
	for part := range strings.SplitSeq(clean, "/") {
		if strings.HasPrefix(part, ".") {
			return "", nil
		}
	}
	if !validName(clean) {
		return "", fmt.Errorf("%w: %q is no name for a file", errArchive, name)
	}
	return path.Join(x.dir, clean), nil
}

// link gives the files their other names, as hard links.
func (x *extractor) link() error {
	for name := range x.links {
		target := name
		for hops := 0; ; hops++ {
			next, ok := x.links[target]
			if !ok {
				break
			}
			if target = next; hops > 16 {
				return fmt.Errorf("%w: the link %q has no end", errArchive, name)
			}
		}
		file, ok := x.files[target]
		switch {
		case name == "":
			continue
		case !ok:
			return fmt.Errorf("%w: the link %q leads to no file of it", errArchive, name)
		}
		if _, twice := x.files[name]; twice {
			return fmt.Errorf("%w: it holds %q twice", errArchive, name)
		}
		if err := linkOrCopy(x.root, target, x.root, name); err != nil {
			return err
		}
		x.files[name] = file
	}
	return nil
}

// writeFile makes a new file below root, durable, and says what it holds; Size is below 0 where there is none. An error
// of the body is errRead.
func writeFile(ctx context.Context, root *os.Root, name string, body io.Reader) (artifacts.File, error) {
	none := artifacts.File{Size: -1}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return none, notADirectory(err)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return none, notADirectory(err)
	}
	defer f.Close()
	made := artifacts.File{}
	sum := sha256.New()
	made.Size, err = copyTo(ctx, io.MultiWriter(f, sum), body)
	made.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if err == nil {
		err = f.Sync()
	}
	switch {
	case ctx.Err() != nil:
		return made, ctx.Err()
	case err != nil && !errors.Is(err, errRead):
		return made, fmt.Errorf("failed to write %s: %w", name, err)
	}
	return made, err
}

// notADirectory tells a name that is taken from other faults.
func notADirectory(err error) error {
	if errors.Is(err, fs.ErrExist) || strings.Contains(err.Error(), "not a directory") {
		return fmt.Errorf("%w: %w", errConflict, err)
	}
	return fmt.Errorf("failed to make file: %w", err)
}

// linkOrCopy gives a file another name; where the file system has no hard links, it is a copy.
func linkOrCopy(from *os.Root, name string, to *os.Root, as string) error {
	if err := to.MkdirAll(path.Dir(as), 0o755); err != nil {
		return notADirectory(err)
	}
	err := os.Link(path.Join(from.Name(), name), path.Join(to.Name(), as))
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrExist) {
		return notADirectory(err)
	}
	f, err := from.Open(name)
	if err != nil {
		return fmt.Errorf("failed to open %s: %w", name, err)
	}
	defer f.Close()
	_, err = writeFile(context.Background(), to, as, f)
	return err
}
