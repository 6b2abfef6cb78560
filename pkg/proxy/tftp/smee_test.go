package tftp

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tinkerbell/stack/internal/testwait"
)

// Smee of the modern Tinkerbell finds a Raspberry Pi by its address, and serves its config.txt and cmdline.txt from the
// machine's Hardware, and its firmware from a directory that the Hardware names. TINKERBELL=PATH is its binary
// (go build ./cmd/tinkerbell in a checkout of tinkerbell/tinkerbell).
func TestSmeeThatMovesIsFound(t *testing.T) {
	binary := os.Getenv("TINKERBELL")
	if binary == "" {
		t.Skip("needs TINKERBELL=PATH, the binary of the modern Tinkerbell")
	}
	const serial = "a1b2c3d4"
	dir := t.TempDir()
	files := map[string]int{"start4.elf": 900_000, "kernel8.img": 512 * 40}
	for name, size := range files {
		path := filepath.Join(dir, "rpi4", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content(size), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	hardware := filepath.Join(dir, "hardware.yaml")
	text := fmt.Sprintf(`- apiVersion: tinkerbell.org/v1alpha1
  kind: Hardware
  metadata: {name: pi, namespace: default}
  spec:
    interfaces:
    - dhcp:
        mac: "dc:a6:32:00:00:01"
        ip: {address: %s, netmask: 255.255.255.0, gateway: %s}
      netboot:
        allowPXE: true
        osie: {kernelParams: [console=ttyAMA0, quiet]}
        rpi: {serialNum: %s, firmwarePath: rpi4, configTxt: "arm_64bit=1\n"}
`, clientIP, proxyIP, serial)
	if err := os.WriteFile(hardware, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	l := newLab(t)
	l.returns(t)
	l.caught(t)
	start(t, l.server, binary, "--backend=file", "--backend-file-path="+hardware, "--enable-tootles=false",
		"--enable-tink-server=false", "--enable-tink-controller=false", "--enable-rufio-controller=false",
		"--enable-secondstar=false", "--enable-ui=false", "--enable-crd-migrations=false", "--dhcp-enabled=false",
		"--tftp-asset-dir="+dir, "--tftp-server-bind-addr="+serverIP, "--public-ipv4="+serverIP,
		"--dhcp-tftp-ip="+serverIP, "--bind-address="+serverIP, "--syslog-enabled=false")
	f := l.front(t, Config{Pick: to(serverIP + ":69"), Transparent: true})
	l.front(t, Config{Pick: to(serverIP + ":69"), Route: "hidden", Listen: l.at(6900)})
	get := func(port int, file string) ([]byte, error) {
		return fetch{file: serial + "/" + file, options: []string{"tsize", "0", "blksize", "1024"}}.run(
			l.client, fmt.Sprintf("%s:%d", proxyIP, port))
	}
	testwait.Until(t, "Smee up", func() bool { _, err := get(69, "config.txt"); return err == nil })
	for name, want := range map[string][]byte{
		"config.txt": []byte("arm_64bit=1\n"), "cmdline.txt": []byte("console=ttyAMA0 quiet"),
		"start4.elf": content(files["start4.elf"]), "kernel8.img": content(files["kernel8.img"]),
	} {
		if got, err := get(69, name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: got %d bytes of %d, %v", name, len(got), len(want), err)
		}
		if _, err := get(6900, name); err == nil {
			t.Errorf("%s: a server that does not see the machine gave it", name)
		}
	}
	if got := f.outcomes(EndingTimeout) + f.outcomes(EndingNoAnswer); got != 0 {
		t.Errorf("%d transfers without an end", got)
	}
}

// The real ones give the same loaders by TFTP and by HTTP, to every machine; restarted with another patch, they give
// others of the same length. SMEE=PATH is the classic one (github.com/tinkerbell/smee/cmd/smee).
func TestLoadersOfTheRealSmee(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for port 69")
	}
	const at = "127.69.69.69"
	for _, tt := range []struct {
		variable, loaders string
		args              []string
		patch             string
		files             []string
	}{
		{
			"TINKERBELL", ":7080/ipxe/binary/", []string{
				"--backend=file", "--enable-tootles=false", "--enable-tink-server=false", "--enable-tink-controller=false",
				"--enable-rufio-controller=false", "--enable-secondstar=false", "--enable-ui=false",
				"--enable-crd-migrations=false", "--dhcp-enabled=false", "--tftp-server-bind-addr=" + at,
				"--public-ipv4=" + at, "--dhcp-tftp-ip=" + at, "--bind-address=" + at, "--syslog-enabled=false",
			}, "--ipxe-embedded-script-patch=", []string{"undionly.kpxe", "ipxe.efi", "snp-x86_64.efi", "snp-arm64.efi"},
		},
		{
			"SMEE", ":7171/ipxe/", []string{
				"-backend-noop-enabled", "-backend-kube-enabled=false", "-dhcp-enabled=false", "-syslog-enabled=false",
				"-http-ipxe-script-enabled=false", "-tftp-addr=" + at, "-http-addr=" + at, "-http-port=7171",
			}, "-ipxe-script-patch=", []string{"undionly.kpxe", "ipxe.efi", "snp.efi"},
		},
	} {
		t.Run(tt.variable, func(t *testing.T) {
			binary := os.Getenv(tt.variable)
			if binary == "" {
				t.Skipf("needs %s=PATH", tt.variable)
			}
			args := tt.args
			if tt.variable == "TINKERBELL" {
				hardware := filepath.Join(t.TempDir(), "hardware.yaml")
				if err := os.WriteFile(hardware, nil, 0o644); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--backend-file-path="+hardware)
			}
			k := &keeping{config: Config{Pick: to(at + ":69"), Loaders: tt.loaders}}
			k.listen(t)
			former := map[string][]byte{}
			for _, patch := range []string{"echo one", "echo two"} {
				t.Run(patch, func(t *testing.T) {
					run := append([]string{binary}, append(args, tt.patch+patch)...)
					start(t, nil, run...)
					testwait.Until(t, "up", func() bool {
						got, err := k.direct(t, at+":69", fetch{file: tt.files[0], tries: 1})
						return err == nil && len(got) > 0
					})
					for _, file := range tt.files {
						want, err := k.direct(t, at+":69", fetch{file: file})
						if err != nil {
							t.Fatal(err)
						}
						k.Update(Config{}) // what was known is a minute old, as it were
						k.Update(k.config)
						k.kept(t, file, want)
						for _, name := range []string{"52:54:00:00:00:01/" + file, file + "-00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"} {
							got, err := k.get(t, fetch{file: name, options: []string{"blksize", "1468", "windowsize", "4"}})
							if err != nil || !bytes.Equal(got, want) {
								t.Errorf("%s: got %d bytes of %d, %v", name, len(got), len(want), err)
							}
						}
						if before := former[file]; before != nil {
							if same := bytes.Equal(before, want); len(before) != len(want) || same != (file == "undionly.kpxe") {
								t.Errorf("%s: %d and %d bytes with two patches, the same: %t", file, len(before), len(want), same)
							}
						}
						former[file] = want
					}
				})
			}
		})
	}
}
