package tftp

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// A machine of QEMU with U-Boot, as boards have it: it gets an address and a file's name by DHCP, asks for two files
// that are not there, and for one that is.
func TestUBoot(t *testing.T) {
	t.Parallel()
	const rom = "/usr/lib/u-boot/qemu-x86/u-boot.rom"
	if os.Getuid() != 0 {
		t.Skip("needs root to start the servers")
	}
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	if _, err := os.Stat(rom); errors.Is(err, os.ErrNotExist) {
		t.Skip("needs U-Boot (apt-get install u-boot-qemu)")
	}
	qemu, dnsmasq := program(t, "qemu-system-x86_64", "qemu-system-x86"), program(t, "dnsmasq", "dnsmasq-base")
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "boot.img"), content(300_000), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"dnsmasq", "single port"} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.tap(t)
			servers(t)[name](l.server, root)
			f := l.front(t, Config{Pick: to(serverIP + ":69")})
			start(t, l.proxy, dnsmasq, "--no-daemon", "--conf-file=/dev/null", "--port=0", "--interface=p0",
				"--dhcp-range=192.0.2.100,192.0.2.110,1h", "--dhcp-boot=boot.img,,"+proxyIP, "--user=root", "--pid-file=",
				"--leasefile-ro")
			console := new(buffer)
			cmd := exec.Command(qemu, "-m", "256", "-nographic", "-no-reboot", "-bios", rom, "-netdev",
				"tap,id=n,ifname=tap0,script=no,downscript=no", "-device", "e1000,netdev=n")
			cmd.Stdout, cmd.Stderr = console, console
			if err := l.client.Try(cmd.Start); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
				if t.Failed() {
					t.Logf("the machine's console:\n%s", console)
				}
			}()
			for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
				if strings.Contains(console.String(), "Bytes transferred = 300000") && f.outcomes(OutcomeServerError) >= 2 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("U-Boot did not get its file")
				}
			}
			if got := f.outcomes(OutcomeCompleted); got != 1 {
				t.Errorf("%d transfers completed", got)
			}
			if got := f.drops(datagram.DropStranger) + f.drops(DropUnexpected) + f.drops(DropMalformed); got != 0 {
				t.Errorf("%d datagrams of an honest machine dropped", got)
			}
		})
	}
}

// tap makes tap0 in the client's namespace, one Ethernet with the way to the proxy.
func (l *lab) tap(t *testing.T) {
	t.Helper()
	l.client.Do(t, func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
		tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tap0"}, Mode: netlink.TUNTAP_MODE_TAP}
		wire, err := netlink.LinkByName("c0")
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkAdd(bridge), netlink.LinkAdd(tap)); err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetMaster(wire, bridge), netlink.LinkSetMaster(tap, bridge),
			netlink.LinkSetUp(bridge), netlink.LinkSetUp(tap))
	})
}

// buffer is one that is read while it is written.
type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// The boot ROM and the bootloaders of Raspberry Pis, by what is known of their requests: from one port, one after the
// other, sizes first, most files not there.
func TestRaspberryPi(t *testing.T) {
	t.Parallel()
	const serial = "1a2b3c4d"
	for _, singlePort := range []bool{false, true} {
		l := newLab(t)
		fs := &fileServer{files: map[string][]byte{
			"bootcode.bin": content(52_000), serial + "/start.elf": content(900_000), serial + "/config.txt": content(60),
			serial + "/kernel8.img": content(512 * 40), serial + "/cmdline.txt": content(0),
		}, singlePort: singlePort}
		fs.listen(t, l.server, serverIP+":69")
		f := l.front(t, Config{Pick: to(serverIP + ":69")})
		conn := l.udp(t)
		defer conn.Close()
		asked, missing := 0, 0
		get := func(file string, options ...string) {
			t.Helper()
			asked++
			want, there := fs.files[file]
			got, err := fetch{file: file, options: options, local: conn}.run(l.client, proxyIP+":69")
			if !there {
				if missing++; err == nil {
					t.Errorf("%s: got %d bytes of what is not there", file, len(got))
				}
				return
			}
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: got %d bytes of %d, %v", file, len(got), len(want), err)
			}
		}
		// The ROM of the Pi 3: no options, and 512 bytes.
		get("bootcode.bin")
		get("bootsig.bin")
		// Then the loader: with the size, under the serial number, and without it where that is not there.
		get(serial+"/start.elf", "tsize", "0", "blksize", "1024")
		for _, file := range []string{
			"/autoboot.txt", "/config.txt", "/recovery.elf", "/fixup.dat", "/recovery8.img", "/cmdline.txt", "/kernel8.img",
			"/armstub8.bin",
		} {
			// It asks for the size and breaks off, before it reads.
			if oack := exchange(t, conn, rrq(serial+file, "tsize", "0", "blksize", "1024"), proxyIP+":69"); oack[1] == opOack {
				_, _ = conn.WriteToUDPAddrPort(errorPacket(0, "early terminate"), netip.MustParseAddrPort(proxyIP+":69"))
			}
			get(serial+file, "tsize", "0", "blksize", "1024")
		}
		// The Pi 4's EEPROM goes on with larger blocks, from another port.
		other := l.udp(t)
		defer other.Close()
		conn = other
		get(serial+"/start.elf", "tsize", "0", "blksize", "1468")
		testwait.Until(t, "every transfer accounted for", func() bool {
			return f.outcomes(OutcomeCompleted) == asked-missing
		})
		if got := f.outcomes(OutcomeTimeout) + f.outcomes(OutcomeNoAnswer); got != 0 {
			t.Errorf("%d transfers without an end", got)
		}
	}
}
