package kernel

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// module is a module's file that says what it depends on.
func module(t *testing.T, depends string) string {
	t.Helper()
	info, names := "license=GPL\x00depends="+depends+"\x00", "\x00.modinfo\x00.shstrtab\x00"
	const header, section = 64, 64
	var out bytes.Buffer
	for _, part := range []any{
		elf.Header64{
			Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
			Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
			Shoff: header, Ehsize: header, Shentsize: section, Shnum: 3, Shstrndx: 2,
		},
		elf.Section64{},
		elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: header + 3*section, Size: uint64(len(info))},
		elf.Section64{
			Name: 10, Type: uint32(elf.SHT_STRTAB), Off: header + 3*section + uint64(len(info)), Size: uint64(len(names)),
		},
		[]byte(info), []byte(names),
	} {
		if err := binary.Write(&out, binary.LittleEndian, part); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

// Modules are taken after those that they depend on, once each; what is built in is not needed.
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
	const drivers = "lib/modules/6.1-cloud/kernel/drivers/"
	write(drivers+"virtio_net.ko", module(t, "net-failover,virtio"))
	write(drivers+"net_failover.ko", module(t, "failover"))
	write(drivers+"bonding.ko", module(t, ""))
	wanted := []string{"virtio_net", "failover", "virtio", "bonding"}
	if err := pick(t.Context(), unpacked, dir, wanted); err == nil ||
		!strings.Contains(err.Error(), "module failover in the kernel's package, for net_failover, for virtio_net") {
		t.Fatalf("got %v", err)
	}
	write(drivers+"failover.ko", module(t, ""))
	if err := pick(t.Context(), unpacked, dir, wanted); err != nil {
		t.Fatal(err)
	}
	kernel, err := open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, path := range kernel.Modules {
		order = append(order, filepath.Base(path))
	}
	want := []string{"failover.ko", "net_failover.ko", "virtio_net.ko", "bonding.ko"}
	if diff := cmp.Diff(want, order); diff != "" || kernel.Version != "6.1-cloud" {
		t.Errorf("got %+v\n%s", kernel, diff)
	}
	if err := os.Remove(kernel.Modules[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := open(dir); err == nil {
		t.Error("a kernel without a module is taken")
	}
}

// Another release's packages come from where this machine has those of its own.
func TestCopySources(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(from, "sources.list.d"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"sources.list.d/debian.sources": "URIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n",
		"sources.list.d/tool.list":      "deb http://tool.example nodistro main\n",
		"sources.list":                  "deb http://mirror.example/debian-security bookworm-security main\n",
	} {
		if err := os.WriteFile(filepath.Join(from, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := copySources(from, to, "bookworm", "bullseye"); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, name := range []string{"debian.sources", "sources.list", "tool.list"} {
		text, err := os.ReadFile(filepath.Join(to, name))
		if err == nil {
			got[name] = string(text)
		}
	}
	want := map[string]string{
		"debian.sources": "URIs: http://mirror.example/debian\nSuites: bullseye bullseye-updates\n",
		"sources.list":   "deb http://mirror.example/debian-security bullseye-security main\n",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := copySources(from, to, "trixie", "bullseye"); err == nil {
		t.Error("a machine without sources of its release has some")
	}
}
