package linux

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// kernel is the begin of one for x86 that says its release, behind an offset.
func kernel(at uint16, version string) []byte {
	b := make([]byte, 0x4000)
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint16(b[0x20e:], at)
	copy(b[0x200+int(at)&0x1fff:], version)
	return b
}

func TestReleaseOfKernels(t *testing.T) {
	const version = "6.1.0-56-cloud-amd64 (somebody@example.org) #1 SMP"
	for name, test := range map[string]struct {
		kernel []byte
		want   string
	}{
		"Debian's":         {kernel(0x1000, version), "6.1.0-56-cloud-amd64"},
		"cut short":        {kernel(0x1000, version)[:0x1210], ""},
		"without a word":   {kernel(0, version), ""},
		"blanks":           {kernel(0x1000, "   "), ""},
		"beyond what is":   {kernel(0xffff, version), ""},
		"no kernel of x86": {make([]byte, 0x4000), ""},
		"empty":            {nil, ""},
	} {
		if got := Release(test.kernel); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// cpio is an archive with files of 100 bytes.
func cpio(names ...string) (b []byte) {
	for _, name := range append(names, "TRAILER!!!") {
		size := 100
		if name == "TRAILER!!!" {
			size = 0
		}
		b = fmt.Appendf(b, "070701%048x%08x%032x%08x%08x%s\x00", 0, size, 0, len(name)+1, 0, name)
		b = append(b, make([]byte, -len(b)&3)...)
		b = append(b, make([]byte, size)...)
	}
	return b
}

func packed(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

func TestModulesOfInitrds(t *testing.T) {
	plain := cpio("init", "./lib/modules", "./lib/modules/6.1.0", "./lib/modules/6.1.0/modules.dep", "lib/modules/README")
	for name, test := range map[string]struct {
		initrd []byte
		want   string
		more   bool
	}{
		"plain":                    {plain, "6.1.0", false},
		"packed":                   {packed(plain), "6.1.0", false},
		"cut":                      {plain[:len(plain)-200], "6.1.0", true},
		"cut and packed":           {packed(plain)[:60], "", true},
		"of two releases":          {cpio("lib/modules/6.1.0/a", "usr/lib/modules/6.2.0/a"), "6.1.0 6.2.0", false},
		"microcode before":         {slices.Concat(cpio("kernel/x86/microcode/a.bin"), make([]byte, 512), packed(plain)), "6.1.0", false},
		"microcode before zstd":    {slices.Concat(cpio("kernel/x86/microcode/a.bin"), []byte("\x28\xb5\x2f\xfd")), "", false},
		"none":                     {packed(cpio("init")), "", false},
		"xz":                       {[]byte("\xfd7zXZ\x00\x00"), "", false},
		"no archive":               {[]byte("<html>"), "", false},
		"empty":                    {nil, "", false},
		"a name of no length":      {[]byte(strings.Repeat("0", 5) + strings.Repeat("0", 200)), "", false},
		"a size that is no number": {[]byte("070701" + strings.Repeat("x", 200)), "", false},
	} {
		got, more := Modules(test.initrd)
		if strings.Join(got, " ") != test.want || more != test.more {
			t.Errorf("%s: %q %v, want %q %v", name, got, more, test.want, test.more)
		}
	}
}

func FuzzModules(f *testing.F) {
	f.Add(cpio("lib/modules/6.1.0/a"))
	f.Add(packed(cpio("lib/modules/6.1.0/a")))
	f.Add(kernel(0x1000, "6.1.0 "))
	f.Fuzz(func(_ *testing.T, b []byte) {
		Modules(b)
		Release(b)
	})
}
