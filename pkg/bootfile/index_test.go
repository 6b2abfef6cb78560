package bootfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tree makes a directory with files whose content is their path.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNames(t *testing.T) {
	const traceID = "-00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	dir := tree(t,
		"secret", "boot/.hidden", "boot/snp.efi", "boot/EFI/Boot/BOOTX64.EFI", "boot/Boot/x64/wdsmgfw.efi",
		`boot/back\slash`, "boot/Two.efi", "boot/two.efi", "boot/52:54:00:00:00:01/snp.efi", "boot/config.txt",
		"boot/d9780558/config.txt", "boot/start4.elf", "boot/52-54-00-00-00-AB/grub.cfg", "boot/grub.cfg",
		"boot/x"+traceID, "boot/x", "boot/secureboot/shimx64.efi", "boot/52:54:00:00:00:01:00:08/snp.efi",
		"boot/real", "boot/..data/inner",
	)
	for name, to := range map[string]string{
		"a": "/etc/passwd", "b": "../secret", "c": "real", "loop": "loop", "inner": "..data/inner", "zero": "/dev/zero",
	} {
		if err := os.Symlink(to, filepath.Join(dir, "boot", name)); err != nil {
			t.Fatal(err)
		}
	}
	x, err := readIndex(dir, "boot")
	if err != nil {
		t.Fatal(err)
	}
	defer x.close()
	byHTTP := NewNames(dir, "boot/")
	for _, tt := range []struct{ id, asked, want string }{
		{"N01", "snp.efi", "snp.efi"},
		{"N01", "/snp.efi", "snp.efi"},
		{"N01", "//snp.efi", "snp.efi"},
		{"N01", "./snp.efi", "snp.efi"},
		{"N01", "/./snp.efi", "snp.efi"},
		{"N01", `\snp.efi`, "snp.efi"},
		{"N01", `\\snp.efi`, "snp.efi"},
		{"N01", `/\snp.efi`, "snp.efi"},
		{"N02", `\EFI\Boot\bootx64.efi`, "EFI/Boot/BOOTX64.EFI"},
		{"N02", `EFI\Boot/bootx64.efi`, "EFI/Boot/BOOTX64.EFI"},
		{"N02", `/EFI\\Boot\bootx64.efi`, "EFI/Boot/BOOTX64.EFI"},
		{"N02", `EFI/Boot\`, ""},
		{"N02", `back\slash`, `back\slash`},
		{"N03", "efi/boot/bootx64.efi", "EFI/Boot/BOOTX64.EFI"},
		{"N03", `boot\X64\WDSMGFW.EFI`, "Boot/x64/wdsmgfw.efi"},
		{"N03", "ſnp.efi", ""},
		{"N04", "Two.efi", "Two.efi"},
		{"N04", "two.efi", "two.efi"},
		{"N04", "TWO.EFI", ""},
		{"N05", "../secret", ""},
		{"N05", `..\secret`, ""},
		{"N05", "a/../../secret", ""},
		{"N05", "snp.efi/../../secret", ""},
		{"N05", "....//secret", ""},
		{"N05", "/..", ""},
		{"N05", ".", ""},
		{"N05", "%2e%2e/secret", ""},
		{"N05", "\xc0\xae\xc0\xae/secret", ""},
		{"N05", `C:\secret`, ""},
		{"N05", "/proc/self/environ", ""},
		{"N06", "a", ""},
		{"N06", "b", ""},
		{"N06", "c", "c"},
		{"N06", "loop", ""},
		{"N06", "zero", ""},
		{"N06", "inner", "inner"},
		{"N06", "..data/inner", ""},
		{"N06", ".hidden", ""},
		{"N07", "EFI", ""},
		{"N08", "52:54:00:00:00:01/snp.efi", "52:54:00:00:00:01/snp.efi"},
		{"N08", "52-54-00-00-00-01/snp.efi", "52:54:00:00:00:01/snp.efi"},
		{"N08", "5254.0000.0001/SNP.efi", "52:54:00:00:00:01/snp.efi"},
		{"N08", "52:54:00:00:00:02/snp.efi", "snp.efi"},
		{"N08", "52:54/snp.efi", ""},
		{"N08", "zz:54:00:00:00:01/snp.efi", ""},
		{"N08", "52:54-00:00:00:01/snp.efi", ""},
		{"N09", "52-54-00-00-00-01-00-08/snp.efi", "52:54:00:00:00:01:00:08/snp.efi"},
		{"N09", "52:54:00:00:00:02/EFI/Boot/bootx64.efi", "EFI/Boot/BOOTX64.EFI"},
		{"N09", "52:54:00:00:00:02/52:54:00:00:00:02/snp.efi", ""},
		{"N09", "foo/bar/snp.efi", ""},
		{"N09", "snp.efi/", ""},
		{"N11", "x" + traceID, "x" + traceID},
		{"N11", "snp.efi" + traceID + "garbage", ""},
		{"N11", "snp.efi" + traceID[:40], ""},
		{"N12", "52:54:00:00:00:02/secureboot/shimx64.efi" + traceID, "secureboot/shimx64.efi"},
		{"N15", "d9780558/config.txt", "d9780558/config.txt"},
		{"N15", "d9780558/start4.elf", ""},
		{"N18", "snp.efi\xff", ""},
		{"N18", "pxelinux.biny\x0a;o\x1e", ""},
		{"N19", "np.efi", ""},
		{"N20", string(make([]byte, 65000)), ""},
		{"N20", "snp.efi;mode=octet", ""},
		{"N20", "tftp://10.0.0.1/snp.efi", ""},
		{"B15", "52:54:00:00:00:01/grub.cfg", ""},
		{"B15", "52:54:00:00:00:ab/snp.efi", "snp.efi"},
		{"B15", "52:54:00:00:00:ab/grub.cfg", "52-54-00-00-00-AB/grub.cfg"},
	} {
		got, ok := x.find(tt.asked)
		if got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: %.80q is %q, %t; want %q", tt.id, tt.asked, got, ok, tt.want)
		}
		if tt.want == `back\slash` {
			continue // a URL's backslash is a slash
		}
		want := ""
		if tt.want != "" {
			want = "boot/" + tt.want
		}
		if got, ok := byHTTP.Find("/BOOT/" + tt.asked); ok != (want != "") || ok && got != want {
			t.Errorf("%s: by HTTP %.80q is %q, %t; want %q", tt.id, tt.asked, got, ok, want)
		}
	}
	for _, outside := range []string{"", "/", "/boot", "/boots/snp.efi", "/snp.efi", "/secret", "/boot/../secret"} {
		if got, ok := byHTTP.Find(outside); ok {
			t.Errorf("by HTTP %q is %q", outside, got)
		}
	}
	if got := x.ambiguous(); got != "two.efi" {
		t.Errorf("ambiguous is %q", got)
	}
}

func TestLoaderNames(t *testing.T) {
	const trace = "-00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, tt := range []struct{ id, asked, want string }{
		{"K12", "undionly.kpxe", "undionly.kpxe"},
		{"K12", "snp-x86_64.efi", "snp-x86_64.efi"},
		{"K12", "/ipxe.efi", "ipxe.efi"},
		{"K12", "Snp-x86_64.efi", "Snp-x86_64.efi"}, // another name, to be asked of the server
		{"K12", "ipxe.iso", ""},
		{"K12", "ipxe-efi.img", ""},
		{"K12", "autoexec.ipxe", ""},
		{"K12", "pxelinux.cfg/01-52-54-00-00-00-01", ""},
		{"N08", "52:54:00:00:00:01/ipxe.efi", "ipxe.efi"},
		{"N08", "/52-54-00-00-00-01/ipxe.efi", "ipxe.efi"},
		{"N08", "5254.0000.0001/ipxe.efi", "ipxe.efi"},
		{"N09", "52:54:00:00:00:01:00:08/ipxe.efi", "ipxe.efi"},
		{"N09", "foo/bar/ipxe.efi", ""},
		{"N09", "foo/ipxe.efi", ""},
		{"N09", "52:54:00:00:00:01/52:54:00:00:00:01/ipxe.efi", ""},
		{"N09", "ipxe.efi/", ""},
		{"N10", "ipxe.efi" + trace, "ipxe.efi"},
		{"N10", "52:54:00:00:00:01/ipxe.efi" + strings.ToUpper(trace), "ipxe.efi"},
		{"N11", "ipxe.efi" + trace[:30] + trace[31:], ""},
		{"N11", "ipxe.efi-00-00000000000000000000000000000000-b7ad6b7169203331-01", ""},
		{"N11", "ipxe.efi-00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", ""},
		{"N11", "ipxe.efi" + trace + "garbage", ""},
		{"N11", "ipxe.efi" + trace + trace, ""},
		{"N01", `\ipxe.efi`, ""},
		{"N05", "../ipxe.efi", ""},
		{"N05", "..%2fipxe.efi", ""},
		{"N18", "ipxe.efi\xff", ""},
		{"N18", "a\nb.efi", ""},
		{"N18", "ipxe.efi?x=.efi", ""},
		{"N20", strings.Repeat("a", 1000) + ".efi", ""},
		{"N20", "", ""},
		{"N20", ".efi", ""},
	} {
		got, ok := LoaderName(tt.asked)
		if ok != (tt.want != "") || ok && got != tt.want {
			t.Errorf("%s: %.80q is %q, %t; want %q", tt.id, tt.asked, got, ok, tt.want)
		}
	}
}
