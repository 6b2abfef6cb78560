package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/tinkerbell/stack/pkg/artifacts"
)

// stageSet puts a set's files into the new generation.
func (c *check) stageSet(ctx context.Context, staged *os.Root, next *artifacts.Manifest, p *plan) error {
	set := artifacts.Set{Release: p.release, Artifacts: map[string]string{}}
	for _, a := range p.artifacts {
		set.Artifacts[a.name] = key(a)
		var err error
		if file, fresh := p.paths[a.name]; fresh {
			err = c.stageFresh(ctx, staged, next, a, file)
		} else {
			err = c.stageOld(staged, next, func(f artifacts.File) bool { return f.Set == a.set && f.Artifact == a.name })
		}
		if err != nil {
			return fmt.Errorf("failed to put %s in place: %w", a.name, err)
		}
	}
	next.Sets[p.set.Name] = set
	return nil
}

// stageFresh puts what was downloaded into the new generation.
func (c *check) stageFresh(
	ctx context.Context, staged *os.Root, next *artifacts.Manifest, a artifact, file string,
) error {
	add := func(name string, f artifacts.File) {
		f.Set, f.Artifact = a.set, a.name
		next.Files[name] = f
	}
	if a.extract {
		x := &extractor{
			root: staged, dir: path.Dir(a.as), maxBytes: int64(c.config.MaxSize), maxFiles: c.config.MaxFiles,
		}
		files, err := x.extract(ctx, file)
		for name, f := range files {
			add(name, f)
		}
		return err
	}
	if _, taken := next.Files[a.as]; taken {
		return fmt.Errorf("%w: %s", errConflict, a.as)
	}
	partial, err := os.OpenRoot(filepath.Dir(file))
	if err != nil {
		return fmt.Errorf("failed to open downloads: %w", err)
	}
	defer partial.Close()
	if err := linkOrCopy(partial, filepath.Base(file), staged, a.as); err != nil {
		return err
	}
	f, err := hashFile(ctx, staged, a.as)
	if err != nil {
		return err
	}
	add(a.as, f)
	return nil
}

// hashFile says what a file holds.
func hashFile(ctx context.Context, root *os.Root, name string) (artifacts.File, error) {
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return artifacts.File{}, fmt.Errorf("failed to open %s: %w", name, err)
	}
	defer f.Close()
	sum := sha256.New()
	n, err := copyTo(ctx, sum, f)
	if err != nil {
		return artifacts.File{}, fmt.Errorf("%s: %w", name, err)
	}
	return artifacts.File{Size: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// stageOld takes files over from what is served.
func (c *check) stageOld(staged *os.Root, next *artifacts.Manifest, which func(artifacts.File) bool) error {
	root, err := os.OpenRoot(c.volume.path(nameCurrent))
	if err != nil {
		return fmt.Errorf("failed to open what is served: %w", err)
	}
	defer root.Close()
	for name, f := range c.current.Files {
		if !which(f) || isBootName(c.current.Files, name) {
			continue
		}
		if err := linkOrCopy(root, name, staged, name); err != nil {
			return err
		}
		next.Files[name] = f
	}
	return nil
}

// The names of kernels and initramfs. Smee and Tinkerbell ask for vmlinuz-<arch> and initramfs-<arch>, whatever the
// kernel's version; HookOS calls its 6.6 vmlinuz-latest-lts-<arch>.
const (
	kernelName = "vmlinuz-"
	initrdName = "initramfs-"
	ltsInfix   = lts + "-"
)

// bootNames are the names that Smee asks for and nothing is called, with the file that each is to be. A kernel without
// its initramfs, or beside another's, boots nothing, so that both get their names, or neither.
func bootNames(files map[string]artifacts.File) map[string]string {
	names := map[string]string{}
	for name := range files {
		dir, base := path.Split(name)
		arch, ok := strings.CutPrefix(base, kernelName+ltsInfix)
		if !ok {
			continue
		}
		kernel, initrd, ltsInitrd := dir+kernelName+arch, dir+initrdName+arch, dir+initrdName+ltsInfix+arch
		_, complete := files[ltsInitrd]
		_, kernelTaken := files[kernel]
		_, initrdTaken := files[initrd]
		if complete && !kernelTaken && !initrdTaken {
			names[kernel], names[initrd] = name, ltsInitrd
		}
	}
	return names
}

// isBootName reports whether the name is one that was made for a file beside it.
func isBootName(files map[string]artifacts.File, name string) bool {
	dir, base := path.Split(name)
	for _, prefix := range []string{kernelName, initrdName} {
		if arch, ok := strings.CutPrefix(base, prefix); ok {
			file, ok := files[dir+prefix+ltsInfix+arch]
			return ok && file == files[name]
		}
	}
	return false
}

// stageBootNames makes the names that machines ask for, by links. They come after all sets, whose own files have
// precedence, and are made anew for each generation.
func stageBootNames(staged *os.Root, next *artifacts.Manifest) error {
	for name, file := range bootNames(next.Files) {
		if err := linkOrCopy(staged, file, staged, name); err != nil {
			return err
		}
		next.Files[name] = next.Files[file]
	}
	return nil
}

// carryOver keeps a set as it is served. A file of another set that took one of its names goes before.
func (c *check) carryOver(staged *os.Root, next *artifacts.Manifest, name string) error {
	set, ok := c.current.Sets[name]
	if !ok {
		return nil
	}
	if err := c.stageOld(staged, next, func(f artifacts.File) bool { return f.Set == name }); err != nil {
		if errors.Is(err, errConflict) {
			c.log.Error("files of a failed set lost to another set", "set", name, "error", err)
			return unstage(staged, next, name)
		}
		return err
	}
	next.Sets[name] = set
	return nil
}

// unstage takes a set's files out of the new generation again.
func unstage(staged *os.Root, next *artifacts.Manifest, set string) error {
	delete(next.Sets, set)
	for name, f := range next.Files {
		if f.Set != set {
			continue
		}
		if err := staged.Remove(name); err != nil {
			return fmt.Errorf("failed to remove new file: %w", err)
		}
		delete(next.Files, name)
	}
	return nil
}
