package machine

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/installer"
)

// entry is a file of an archive.
type entry struct {
	name    string
	mode    uint64
	device  [2]uint64
	content string
}

// unpack reads an archive as the kernel does, strictly.
func unpack(t *testing.T, archive []byte) (entries []entry) {
	t.Helper()
	const headerLen = 110
	inodes := map[uint64]bool{}
	for {
		if len(archive) < headerLen || string(archive[:6]) != "070701" {
			t.Fatalf("no header at % x", archive[:min(len(archive), 16)])
		}
		var fields [13]uint64
		for i := range fields {
			field, err := strconv.ParseUint(string(archive[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			fields[i] = field
		}
		size, nameSize := int(fields[6]), int(fields[11])
		nameEnd := (headerLen + nameSize + 3) &^ 3
		name := strings.TrimSuffix(string(archive[headerLen:headerLen+nameSize]), "\x00")
		if name == "TRAILER!!!" {
			if len(archive) != nameEnd {
				t.Errorf("%d bytes after the trailer", len(archive)-nameEnd)
			}
			return entries
		}
		if inodes[fields[0]] {
			t.Errorf("%s: inode %d is there twice", name, fields[0])
		}
		inodes[fields[0]] = true
		entries = append(entries, entry{
			name, fields[1], [2]uint64{fields[9], fields[10]}, string(archive[nameEnd : nameEnd+size]),
		})
		archive = archive[(nameEnd+size+3)&^3:]
	}
}

func initramfs(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"init": "program", "virtio.ko": "1", "virtio_net.ko": "12345"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var archive bytes.Buffer
	modules := []string{filepath.Join(dir, "virtio.ko"), filepath.Join(dir, "virtio_net.ko")}
	if err := writeInitramfs(&archive, filepath.Join(dir, "init"), modules); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func TestInitramfs(t *testing.T) {
	var none [2]uint64
	want := []entry{
		{"dev", unix.S_IFDIR | 0o755, none, ""}, {"proc", unix.S_IFDIR | 0o755, none, ""}, {"sys", unix.S_IFDIR | 0o755, none, ""},
		{"modules", unix.S_IFDIR | 0o755, none, ""}, {"dev/console", unix.S_IFCHR | 0o600, [2]uint64{5, 1}, ""},
		{"init", unix.S_IFREG | 0o755, none, "program"}, {"modules/virtio.ko", unix.S_IFREG | 0o644, none, "1"},
		{"modules/virtio_net.ko", unix.S_IFREG | 0o644, none, "12345"},
		{"modules/order", unix.S_IFREG | 0o644, none, "virtio.ko\nvirtio_net.ko\n"},
	}
	if diff := cmp.Diff(want, unpack(t, initramfs(t)), cmp.AllowUnexported(entry{})); diff != "" {
		t.Error(diff)
	}
}

// TestInitramfsByCpio has cpio read the archive, where it is installed.
func TestInitramfsByCpio(t *testing.T) {
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skip("needs cpio")
	}
	cmd := exec.CommandContext(t.Context(), "cpio", "-t", "--quiet")
	cmd.Stdin = bytes.NewReader(initramfs(t))
	said, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(said), "modules/virtio_net.ko\nmodules/order\n") {
		t.Errorf("cpio says %s, %v", said, err)
	}
}

func TestConsole(t *testing.T) {
	var got []string
	c := &console{report: func(r installer.Report) { got = append(got, r.Step) }}
	text := "boot\r\n[ 1.0] x " + installer.Report{Step: "one"}.Line() + "\r\n" + strings.Repeat("noise ", 20_000) + "\n" +
		installer.Report{Step: "two"}.Line() + "\n" + installer.Report{Step: "cut"}.Line()
	for i := 0; i < len(text); i += 7 {
		if _, err := c.Write([]byte(text[i:min(i+7, len(text))])); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"one", "two"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestPick(t *testing.T) {
	unpacked, dir := t.TempDir(), filepath.Join(t.TempDir(), "kernel")
	write := func(name, content string) {
		path := filepath.Join(unpacked, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("boot/vmlinuz-6.1-cloud", "image")
	write("lib/modules/6.1-cloud/modules.builtin", "kernel/drivers/virtio/virtio.ko\n")
	if err := pick(unpacked, dir); err == nil || !strings.Contains(err.Error(), "module virtio_ring") {
		t.Fatalf("got %v", err)
	}
	write("boot/vmlinuz-6.1-cloud", "image")
	for _, name := range moduleOrder {
		if name != "virtio" {
			write("lib/modules/6.1-cloud/kernel/drivers/"+name+".ko", name)
		}
	}
	if err := pick(unpacked, dir); err != nil {
		t.Fatal(err)
	}
	kernel, err := openKernel(dir)
	if err != nil {
		t.Fatal(err)
	}
	if kernel.Version != "6.1-cloud" || len(kernel.Modules) != len(moduleOrder)-1 {
		t.Errorf("got %+v", kernel)
	}
	if err := os.Remove(kernel.Modules[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := openKernel(dir); err == nil {
		t.Error("a kernel without a module is taken")
	}
}
