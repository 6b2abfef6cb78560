package machine

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
)

// writeInitramfs archives the installer and the kernel's modules, in the order in which they are loaded.
func writeInitramfs(w io.Writer, init string, modules []string) error {
	program, err := os.ReadFile(init)
	if err != nil {
		return fmt.Errorf("failed to read init: %w", err)
	}
	var records []cpio.Record
	for _, name := range []string{"dev", "proc", "sys", "modules"} {
		records = append(records, cpio.Directory(name, 0o755))
	}
	records = append(records,
		cpio.CharDev("dev/console", 0o600, 5, 1), // the kernel opens it for init before anything is mounted
		cpio.StaticFile("init", string(program), 0o755))
	var order strings.Builder
	for _, path := range modules {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("failed to read module: %w", err)
		}
		records = append(records, cpio.StaticFile("modules/"+filepath.Base(path), string(content), 0o644))
		order.WriteString(filepath.Base(path) + "\n")
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
