package machine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/observe"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// TestSecureBoot is docs/secure-boot.md: firmware with Microsoft's keys starts Debian's shim, GRUB and kernel out of the pod
// by TFTP, and firmware with keys of its owner the same by HTTPS, with the shim that the owner signed and the owner's
// certificate authority, as the modern Tinkerbell tells it to. A machine without the setting is told to load
// Tinkerbell's iPXE, which nobody signed; one that trusts another authority gets nothing.
func TestSecureBoot(t *testing.T) {
	tinkerbell, err := program.BuildTinkerbell(t.Context(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	byTFTP, byHTTPS, refused, stranger := uefi, uefi, uefi, uefi
	for i, m := range []*lab.Machine{&byTFTP, &byHTTPS, &refused, &stranger} {
		m.Name = []string{"tftp", "https", "refused", "stranger"}[i]
		m.MAC = net.HardwareAddr{0x52, 0x54, 0, 0, 4, byte(i + 1)}
		m.IP = netip.AddrFrom4([4]byte{192, 0, 2, byte(111 + i)})
		m.SecureBoot, m.BootFile = "ms", "shimx64.efi"
	}
	refused.BootFile = ""
	byHTTPS.SecureBoot, byHTTPS.BootFile = "snakeoil", "signed/shimx64.efi"
	byHTTPS.HTTPBoot, stranger.HTTPBoot = true, true
	certs := t.TempDir()
	byHTTPS.Authority, stranger.Authority = certificates(t, certs, "tls"), certificates(t, certs, "other")
	dir := t.TempDir()
	signed(t, dir)
	boot(t, lab.Options{
		Tinkerbell: &tinkerbell, Artifacts: dir, Certificates: certs,
		Routes: "preset: tinkerbell\nroutes:\n" +
			"- {name: tftp, protocol: tftp, listen: 69, backends: \"tinkerbell:69\", tftp: {files: .}}\n" +
			"- {name: files, protocol: files, listen: 7173, tls: {firmwareCiphers: true, " +
			"certificates: {certificate: " + lab.CertificatesInPod + "/tls.crt, key: " + lab.CertificatesInPod + "/tls.key}}}\n",
		Args: map[string][]string{lab.Tinkerbell: {
			"--dhcp-ipxe-http-binary-scheme=https",
			"--dhcp-ipxe-http-binary-port=7173", "--dhcp-ipxe-http-binary-path=/",
		}},
	}, []test{
		{machine: byTFTP, steps: chain()},
		{machine: byHTTPS, steps: []expected{
			{what: "the loader's URL", says: "URI: https://192.0.2.2:7173/" + byHTTPS.MAC.String() + "/signed/shimx64.efi"},
			enforced,
		}},
		{machine: refused, steps: []expected{loads("ipxe.efi")}, after: tells("loader-did-not-start", `"ipxe.efi"`)},
		{machine: stranger, steps: []expected{{what: "its failure", says: "Could not retrieve NBP file size"}},
			after: tells("tls-refused", "certificate")},
	}, nil)
}

// certificates makes an authority and the service's certificate by it, a file of each, and says where the authority is.
// Firmware knows nothing but RSA.
func certificates(t *testing.T, dir, name string) string {
	t.Helper()
	name = filepath.Join(dir, name)
	authority := []string{"-outform", "DER", "-keyout", name + "-ca.key", "-out", name + "-ca.der", "-subj", "/CN=" + filepath.Base(name)}
	issued := []string{
		"-keyout", name + ".key", "-out", name + ".crt", "-subj", "/CN=service", "-CA", name + "-ca.der", "-CAkey", name + "-ca.key",
		"-addext", "subjectAltName=IP:192.0.2.2", "-addext", "basicConstraints=critical,CA:FALSE",
	}
	for _, args := range [][]string{authority, issued} {
		args = append([]string{"req", "-x509", "-newkey", "rsa:2048", "-noenc", "-days", "2"}, args...)
		if said, err := exec.Command("openssl", args...).CombinedOutput(); err != nil {
			t.Fatalf("openssl %v: %v: %s", args, err, said)
		}
	}
	if err := os.Chmod(name+".key", 0o644); err != nil { // stack-proxy is nobody there
		t.Fatal(err)
	}
	return name + "-ca.der"
}

// signed fills a directory with what Debian signs, and what GRUB asks for.
func signed(t *testing.T, dir string) {
	t.Helper()
	boots, err := kernel.Fetch(t.Context(), cacheOf(t, kernel.Machine), kernel.Machine, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	// The signed GRUB of Debian 12 has no HTTP.
	unpacked := func(release, name, file string) string {
		dir, err := kernel.Unpack(t.Context(), kernel.Package{Name: name, Arch: "amd64", Release: release}, t.Logf)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, file)
	}
	shim := unpacked("", "shim-signed", "usr/lib/shim/shimx64.efi.signed")
	grub := unpacked("trixie", "grub-efi-amd64-signed", "usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed")
	own := filepath.Join(t.TempDir(), "shim")
	sign(t, unpacked("", "sbsigntool", "usr/bin/sbsign"), shim, own)
	for name, from := range map[string]string{
		"shimx64.efi": shim, "grubx64.efi": grub, "signed/shimx64.efi": own, "signed/grubx64.efi": grub,
		machine.KernelFile: boots.Image,
	} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), content, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"grub/grub.cfg": "linux /" + machine.KernelFile + " console=ttyS1 " + machine.KernelArgs + " machine=$net_default_mac\n" +
			"initrd /" + machine.InitramfsFile + "\nboot\n",
		machine.InitramfsFile: strings.Repeat("none", 1000),
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// sign adds a signature by the keys of Debian's package ovmf to a program.
func sign(t *testing.T, sbsign, from, to string) {
	t.Helper()
	const keys = "/usr/share/ovmf/PkKek-1-snakeoil."
	key := filepath.Join(t.TempDir(), "key")
	for _, args := range [][]string{
		{"openssl", "rsa", "-in", keys + "key", "-passin", "pass:snakeoil", "-out", key},
		{sbsign, "--key", key, "--cert", keys + "pem", "--output", to, from},
	} {
		if said, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", args, err, said)
		}
	}
}

func cacheOf(t *testing.T, p kernel.Package) string {
	t.Helper()
	dir, err := kernel.Cache(p)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// enforced is what the kernel's stub says once firmware has started it.
var enforced = expected{what: "the kernel", says: "UEFI Secure Boot is enabled."}

// chain is what shim, GRUB and the kernel are seen to do.
func chain() (steps []expected) {
	for _, file := range []string{
		"shimx64.efi", "grubx64.efi", "grub.cfg", machine.KernelFile, machine.InitramfsFile,
	} {
		steps = append(steps, loads(file))
	}
	return append(steps, enforced)
}

func loads(file string) expected {
	return expected{what: file, match: func(e observe.Event) bool {
		return e.Kind == observe.TFTP && e.Bytes > 0 && path.Base(e.Name) == file
	}}
}

// tells wants stack-boots to name a cause within ten seconds of what a machine did last.
func tells(cause, text string) func(*testing.T, *lab.Lab, lab.Machine) {
	return func(t *testing.T, l *lab.Lab, m lab.Machine) {
		t.Helper()
		url := "http://" + lab.PodIP.String() + ":" + strconv.Itoa(lab.BootsAdminPort) + "/api/v1/boots/" + m.MAC.String()
		patience := progress.Patience{Quiet: time.Minute}
		err := progress.Until(t.Context(), patience, 250*time.Millisecond, func(ctx context.Context) error {
			body, err := l.Page(ctx, lab.RolePod, url)
			if err != nil {
				return err
			}
			var shown struct {
				Boots []struct {
					End   time.Time
					Cause struct{ Name, Text string }
				}
			}
			if err := json.Unmarshal([]byte(body), &shown); err != nil {
				return progress.Final(err)
			}
			newest := shown.Boots[0]
			if newest.Cause.Name != cause || !strings.Contains(newest.Cause.Text, text) {
				return fmt.Errorf("stack-boots shows %s", body)
			}
			t.Logf("%.2f s after its last step: %s", time.Since(newest.End).Seconds(), newest.Cause.Text)
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}
