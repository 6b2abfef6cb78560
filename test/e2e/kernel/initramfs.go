package kernel

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// File is a file of an initramfs.
type File struct {
	Name string // where it will be, without the first slash
	From string // the file that it is a copy of
	Mode uint64
}

// WriteInitramfs archives the first program, the kernel's modules, in the order in which they are loaded (see
// [LoadModules]), and other files.
func WriteInitramfs(w io.Writer, init string, modules []string, more ...File) error {
	var records []cpio.Record
	for _, name := range []string{"dev", "proc", "sys", "tmp", "modules"} {
		records = append(records, cpio.Directory(name, 0o755))
	}
	// The kernel opens it for init before anything is mounted.
	records = append(records, cpio.CharDev("dev/console", 0o600, 5, 1))
	files := []File{{"init", init, 0o755}}
	var order strings.Builder
	for _, path := range modules {
		files = append(files, File{"modules/" + filepath.Base(path), path, 0o644})
		order.WriteString(filepath.Base(path) + "\n")
	}
	var made []string
	for _, file := range append(files, more...) {
		for dir := range parents(file.Name) {
			if dir != "modules" && !slices.Contains(made, dir) {
				made = append(made, dir)
				records = append(records, cpio.Directory(dir, 0o755))
			}
		}
		content, err := os.ReadFile(file.From)
		if err != nil {
			return fmt.Errorf("failed to read %s of initramfs: %w", file.Name, err)
		}
		records = append(records, cpio.StaticFile(file.Name, string(content), file.Mode))
	}
	records = append(records, cpio.StaticFile("modules/order", order.String(), 0o644))
	for i := range records {
		records[i].Ino, records[i].NLink = uint64(i+1), 1
	}
	archive := cpio.Newc.Writer(w)
	if err := cpio.WriteRecords(archive, records); err != nil {
		return fmt.Errorf("failed to write initramfs: %w", err)
	}
	return cpio.WriteTrailer(archive)
}

// parents are the directories that a file is in, from the outermost on.
func parents(name string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for i, r := range name {
			if r == '/' && !yield(name[:i]) {
				return
			}
		}
	}
}
