package machine

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// cpioWriter writes an archive in the format that the kernel unpacks as initramfs ("newc", see the kernel's
// Documentation/driver-api/early-userspace/buffer-format.rst).
type cpioWriter struct {
	w     io.Writer
	inode uint32
	err   error
}

// file types in the mode field, as in stat(2).
const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeChar = 0o020000
)

func (c *cpioWriter) dir(name string) { c.entry(name, typeDir|0o755, 0, 0, nil) }

func (c *cpioWriter) file(name string, mode uint32, content []byte) {
	c.entry(name, typeFile|mode, 0, 0, content)
}

func (c *cpioWriter) char(name string, major, minor uint32) {
	c.entry(name, typeChar|0o600, major, minor, nil)
}

// close writes the trailer and returns the first error of all writes.
func (c *cpioWriter) close() error {
	c.inode = 0
	c.header("TRAILER!!!", 0, 0, 0, 0)
	return c.err
}

func (c *cpioWriter) entry(name string, mode, major, minor uint32, content []byte) {
	c.inode++
	c.header(name, mode, major, minor, len(content))
	c.write(content)
	c.write(padding(len(content)))
}

func (c *cpioWriter) header(name string, mode, major, minor uint32, size int) {
	const links, headerLen = 1, 110
	header := "070701"
	for _, field := range []uint32{
		c.inode, mode, 0, 0, links, 0, uint32(size), 0, 0, major, minor, uint32(len(name) + 1), 0,
	} {
		header += fmt.Sprintf("%08X", field)
	}
	c.write([]byte(header + name + "\x00"))
	c.write(padding(headerLen + len(name) + 1))
}

// padding brings n to a multiple of four.
func padding(n int) []byte { return make([]byte, -n&3) }

func (c *cpioWriter) write(b []byte) {
	if c.err == nil && len(b) > 0 {
		_, c.err = c.w.Write(b)
	}
}

// writeInitramfs archives the installer and the kernel's modules, in the order in which they are loaded.
func writeInitramfs(w io.Writer, init string, modules []string) error {
	program, err := os.ReadFile(init)
	if err != nil {
		return fmt.Errorf("failed to read init: %w", err)
	}
	c := &cpioWriter{w: w}
	for _, name := range []string{"dev", "proc", "sys", "modules"} {
		c.dir(name)
	}
	c.char("dev/console", 5, 1) // the kernel opens it for init before anything is mounted
	c.file("init", 0o755, program)
	var order []string
	for _, path := range modules {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("failed to read module: %w", err)
		}
		c.file("modules/"+filepath.Base(path), 0o644, content)
		order = append(order, filepath.Base(path))
	}
	c.file("modules/order", 0o644, []byte(strings.Join(order, "\n")+"\n"))
	return c.close()
}
