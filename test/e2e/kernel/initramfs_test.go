package kernel

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
)

// entry is a file of an archive.
type entry struct {
	name    string
	mode    uint64
	device  [2]uint64
	content string
}

// entriesOf reads an archive as the kernel does, strictly.
func entriesOf(t *testing.T, archive []byte) (entries []entry) {
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
	if err := WriteInitramfs(&archive, filepath.Join(dir, "init"), modules,
		File{"bin/deep/tool", filepath.Join(dir, "init"), 0o755},
		File{"bin/data", filepath.Join(dir, "virtio.ko"), 0o644}); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

func TestInitramfs(t *testing.T) {
	var none [2]uint64
	want := []entry{
		{"dev", unix.S_IFDIR | 0o755, none, ""}, {"proc", unix.S_IFDIR | 0o755, none, ""},
		{"sys", unix.S_IFDIR | 0o755, none, ""}, {"tmp", unix.S_IFDIR | 0o755, none, ""},
		{"modules", unix.S_IFDIR | 0o755, none, ""}, {"dev/console", unix.S_IFCHR | 0o600, [2]uint64{5, 1}, ""},
		{"init", unix.S_IFREG | 0o755, none, "program"}, {"modules/virtio.ko", unix.S_IFREG | 0o644, none, "1"},
		{"modules/virtio_net.ko", unix.S_IFREG | 0o644, none, "12345"},
		{"bin", unix.S_IFDIR | 0o755, none, ""}, {"bin/deep", unix.S_IFDIR | 0o755, none, ""},
		{"bin/deep/tool", unix.S_IFREG | 0o755, none, "program"}, {"bin/data", unix.S_IFREG | 0o644, none, "1"},
		{"modules/order", unix.S_IFREG | 0o644, none, "virtio.ko\nvirtio_net.ko\n"},
	}
	if diff := cmp.Diff(want, entriesOf(t, initramfs(t)), cmp.AllowUnexported(entry{})); diff != "" {
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
	if err != nil || !strings.Contains(string(said), "bin/data\nmodules/order\n") {
		t.Errorf("cpio says %s, %v", said, err)
	}
}
