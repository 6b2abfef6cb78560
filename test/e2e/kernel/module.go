package kernel

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// modules are those of an unpacked package.
type modules struct {
	files   map[string]string // by name
	builtIn map[string]bool
}

// moduleName is a module's name as the kernel has it, of a file such as nf-tables.ko.xz; empty for other files.
func moduleName(file string) string {
	name, ok := strings.CutSuffix(strings.TrimSuffix(filepath.Base(file), ".xz"), ".ko")
	if !ok {
		return ""
	}
	return strings.ReplaceAll(name, "-", "_")
}

func findModules(unpacked string) (modules, error) {
	m := modules{files: map[string]string{}, builtIn: map[string]bool{}}
	err := filepath.WalkDir(unpacked, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := moduleName(path); name != "" {
			m.files[name] = path
		}
		if entry.Name() == "modules.builtin" {
			text, err := os.ReadFile(path)
			for line := range strings.FieldsSeq(string(text)) {
				m.builtIn[moduleName(line)] = true
			}
			return err
		}
		return nil
	})
	if err != nil {
		return modules{}, fmt.Errorf("failed to search kernel's modules: %w", err)
	}
	return m, nil
}

// take copies modules, and before them those that they depend on, to dir, and adds their files' names to order.
func (m modules) take(ctx context.Context, dir string, names, order []string) ([]string, error) {
	for _, name := range names {
		file := name + ".ko"
		if m.builtIn[name] || slices.Contains(order, file) {
			continue
		}
		path, ok := m.files[name]
		if !ok {
			return nil, fmt.Errorf("failed to find module %s in the kernel's package", name)
		}
		if packed := path; strings.HasSuffix(packed, ".xz") {
			path = strings.TrimSuffix(packed, ".xz")
			if _, err := command(ctx, "", "xz", "-d", packed); err != nil {
				return nil, err
			}
		}
		needed, err := dependencies(path)
		if err != nil {
			return nil, err
		}
		if order, err = m.take(ctx, dir, needed, order); err != nil {
			return nil, fmt.Errorf("%w, for %s", err, name)
		}
		if err := os.Rename(path, filepath.Join(dir, file)); err != nil {
			return nil, err
		}
		order = append(order, file)
	}
	return order, nil
}

// dependencies reads which modules a module says that it needs.
func dependencies(path string) ([]string, error) {
	file, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("failed to read module %s: %w", path, err)
	}
	defer func() { _ = file.Close() }()
	section := file.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("failed to read module %s: it has no .modinfo", path)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("failed to read module %s: %w", path, err)
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if names, ok := strings.CutPrefix(string(field), "depends="); ok {
			return strings.FieldsFunc(strings.ReplaceAll(names, "-", "_"), func(r rune) bool { return r == ',' }), nil
		}
	}
	return nil, nil
}
