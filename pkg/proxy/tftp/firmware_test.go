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
	for _, name := range []string{"dnsmasq", itself} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			l.tap(t)
			behind := root
			if name == itself {
				behind = t.TempDir() // the server says that there is no such file, whatever it is asked for
			}
			servers(t)["dnsmasq"](l.server, behind)
			f := l.front(t, realConfig(name, root))
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
				if strings.Contains(console.String(), "Bytes transferred = 300000") && f.outcomes(EndingServerError) >= 2 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("U-Boot did not get its file")
				}
			}
			if got := f.outcomes(EndingCompleted); got != 1 {
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

// A network as Raspberry Pis know it, with files behind the proxy or in its own directory. A Pi is told nothing but an
// address: its boot ROM, EEPROM and loader ask for names of their own, sizes first, most of which are not there.
func TestRaspberryPi(t *testing.T) {
	t.Parallel()
	const serial, mac = "1a2b3c4d", "dc-a6-32-01-36-c2"
	files := map[string][]byte{
		"bootcode.bin": content(52_000), "start4.elf": content(700_000), "config.txt": content(70), "kernel8.img": content(512 * 30),
		serial + "/start.elf": content(900_000), serial + "/config.txt": content(60),
		serial + "/kernel8.img": content(512 * 40), serial + "/cmdline.txt": content(0),
		mac + "/start4.elf": content(800_000), mac + "/config.txt": content(50), mac + "/kernel8.img": content(512 * 50),
	}
	for _, server := range []string{"a port for each transfer", "single port", itself} {
		t.Run(server, func(t *testing.T) {
			l := newLab(t)
			fs := &fileServer{files: files, singlePort: server == "single port"}
			c := Config{Pick: to(serverIP + ":69")}
			if server == itself {
				fs.files = nil
				c.Boot = bootFiles(t, files)
			}
			fs.listen(t, l.server, serverIP+":69")
			f := l.front(t, c)
			if server == itself {
				testwait.Until(t, "boot files are found", f.handler.files.Ready)
			}
			completed := 0
			for _, p := range []pi{
				{rom: true, prefix: serial, want: serial + "/"},
				{prefix: serial, want: serial + "/", newPorts: true, blockSize: "1024"},
				{prefix: mac, want: mac + "/", newPorts: true, blockSize: "1468"},
				{prefix: "00000000", want: "", newPorts: true, blockSize: "1024"},
			} {
				completed += p.boot(t, l, files)
			}
			testwait.Until(t, "every transfer accounted for", func() bool { return f.outcomes(EndingCompleted) == completed })
			if got := f.outcomes(EndingTimeout) + f.outcomes(EndingNoAnswer); got != 0 {
				t.Errorf("%d transfers without an end", got)
			}
		})
	}
}

// pi asks as its boot ROM and bootloaders do, by what is known of their requests.
type pi struct {
	rom       bool   // a Pi 3, whose ROM loads bootcode.bin; else a Pi 4, which has it in its EEPROM
	prefix    string // its directory: the serial number, or by TFTP_PREFIX=2 the MAC
	want      string // where its files are: in that directory, or at the top
	newPorts  bool   // each request is from a port of its own
	blockSize string
}

// boot returns how many files the machine got. It wants each as it is in its directory, and nothing of another's.
func (p pi) boot(t *testing.T, l *lab, files map[string][]byte) (completed int) {
	t.Helper()
	at := netip.MustParseAddrPort(proxyIP + ":69")
	conn := l.udp(t)
	defer func() { _ = conn.Close() }()
	get := func(file string, options ...string) (found bool) {
		t.Helper()
		if p.newPorts {
			_ = conn.Close()
			conn = l.udp(t)
		}
		if len(options) > 0 { // it asks for the size and breaks off, before it reads
			if oack := exchange(t, conn, rrq(file, options...), at.String()); oack[1] == opOack {
				_, _ = conn.WriteToUDPAddrPort(errorPacket(0, "early terminate"), at)
			}
		}
		want, there := files[file]
		got, err := fetch{file: file, options: options, local: conn}.run(l.client, at.String())
		switch {
		case !there && (err == nil || !strings.Contains(err.Error(), "ERROR 1")):
			t.Errorf("%s: got %d bytes of what is not there, %v", file, len(got), err)
		case there && (err != nil || !bytes.Equal(got, want)):
			t.Errorf("%s: got %d bytes of %d, %v", file, len(got), len(want), err)
		case there:
			completed++
		}
		return err == nil
	}
	var options []string
	if p.rom { // no options, and 512 bytes
		get("bootcode.bin")
		get("bootsig.bin")
		options = []string{"tsize", "0", "blksize", "1024"}
	} else {
		options = []string{"tsize", "0", "blksize", p.blockSize}
	}
	// A directory with neither is none: from then on the Pi asks for everything without it.
	prefix := ""
	if get(p.prefix+"/start4.elf", options...) || get(p.prefix+"/start.elf", options...) {
		prefix = p.prefix + "/"
	}
	if prefix != p.want {
		t.Errorf("the Pi's directory is %q, want %q", prefix, p.want)
	}
	for _, file := range []string{
		"autoboot.txt", "config.txt", "pieeprom.sig", "recover4.elf", "recovery.elf", "start4.elf", "fixup4.dat", "fixup.dat",
		"config.txt", "dt-blob.bin", "bcm2711-rpi-4-b.dtb", "recovery8.img", "cmdline.txt", "armstub8-gic.bin", "kernel8.img",
	} {
		get(prefix+file, options...)
	}
	return completed
}
