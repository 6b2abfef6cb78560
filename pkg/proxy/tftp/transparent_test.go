package tftp

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// The lab's server sends what is for the machines' networks by way of the proxy, as docs/tftp.md asks for.
func (l *lab) returns(t testing.TB) {
	t.Helper()
	l.server.Route(t, "192.0.2.0/24", "198.51.100.1")
	l.server.Route(t, "2001:db8:1::/64", "2001:db8:2::1")
	// A host asks for neighbours by its link-local address when it sends from an address that is not its own.
	testwait.Until(t, "link-local address usable", func() bool {
		addrs, err := l.proxy.Links().AddrList(l.proxy.Link(t, "p1"), unix.AF_INET6)
		return err == nil && !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 })
	})
}

// caught is what STACK_PROXY_CATCH_ANSWERS does. A second time, as after a restart, it does no harm.
func (l *lab) caught(t testing.TB) {
	t.Helper()
	for range 2 {
		l.proxy.Do(t, datagram.CatchAnswers)
	}
}

// commands runs a document's commands in a namespace.
func commands(t testing.TB, do func(testing.TB, func() error), lines ...string) {
	t.Helper()
	ip := program(t, "ip", "iproute2")
	do(t, func() error {
		for _, line := range lines {
			args := strings.Fields(line)
			if out, err := command(append([]string{ip}, args[1:]...)...); err != nil {
				return fmt.Errorf("%s: %w: %s", line, err, out)
			}
		}
		return nil
	})
}

// A server sees the machine's address and port, in each family, and answers from its only port or from another one.
func TestServerSeesTheMachine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, server, ask, from string
		singlePort              bool
		want                    string // the address that the server sees
	}{
		{"IPv4", serverIP, proxyIP, clientIP, false, clientIP},
		{"IPv4, single port", serverIP, proxyIP, clientIP, true, clientIP},
		{"IPv6", server6, proxy6, client6, false, client6},
		{"IPv6, single port", server6, proxy6, client6, true, client6},
		{"the other family", serverIP, proxy6, client6, false, "198.51.100.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.returns(t)
			l.caught(t)
			seen := make(chan netip.AddrPort, 16)
			fs := &fileServer{
				files: map[string][]byte{"f": content(70_000)}, singlePort: tt.singlePort,
				onPeer: func(from netip.AddrPort) { seen <- from },
			}
			fs.listen(t, l.server, netip.AddrPortFrom(netip.MustParseAddr(tt.server), 69).String())
			f := l.front(t, Config{
				Pick:        to(netip.AddrPortFrom(netip.MustParseAddr(tt.server), 69).String()),
				Transparent: true,
			})
			for _, options := range [][]string{nil, {"blksize", "1468", "windowsize", "8"}, {"blksize", "8192"}} { // fragments
				var conn *net.UDPConn
				l.client.Do(t, func() (err error) {
					conn, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(tt.from)})
					return err
				})
				at := netip.AddrPortFrom(netip.MustParseAddr(tt.ask), 69).String()
				got, err := fetch{file: "f", options: options, local: conn}.run(l.client, at)
				if err != nil || !bytes.Equal(got, fs.files["f"]) {
					t.Errorf("%v: got %d bytes, %v", options, len(got), err)
				}
				port := conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()
				for range len(seen) { // on a busy machine it may have asked twice
					from := <-seen
					if from.Addr().Unmap().String() != tt.want || tt.want == tt.from && from.Port() != port {
						t.Errorf("the server saw %s, want %s, port %d", from, tt.want, port)
					}
				}
				conn.Close()
			}
			testwait.Until(t, "completed", func() bool { return f.outcomes(EndingCompleted) == 3 })
			if got := f.drops(DropUnexpected); got != 0 {
				t.Errorf("%d datagrams of honest peers dropped", got)
			}
		})
	}
}

// Two sessions of one port, since the client asked two addresses, cannot both have its port towards the server.
func TestTwoSessionsCannotShareAPort(t *testing.T) {
	l := newLab(t)
	l.returns(t)
	l.caught(t)
	seen := make(chan netip.AddrPort, 16)
	fs := &fileServer{
		files: map[string][]byte{"f": content(10)}, onPeer: func(from netip.AddrPort) { seen <- from },
	}
	fs.listen(t, l.server, serverIP+":69")
	l.front(t, Config{Pick: to(serverIP + ":69"), Transparent: true})
	conn := l.udp(t)
	defer conn.Close()
	ports := map[uint16]bool{}
	for _, at := range []string{proxyIP, "192.0.2.200"} {
		if _, err := conn.WriteToUDPAddrPort(rrq("f"), netip.MustParseAddrPort(at+":69")); err != nil {
			t.Fatal(err)
		}
		from := <-seen
		if from.Addr().Unmap().String() != clientIP {
			t.Errorf("the server saw %s", from)
		}
		ports[from.Port()] = true
	}
	if len(ports) != 2 || !ports[conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()] {
		t.Errorf("the server saw ports %v", ports)
	}
}

// An endpoint that is ourselves would get a session for each session.
func TestTransparentServerIsNotTheProxyItself(t *testing.T) {
	l := newLab(t)
	l.caught(t)
	f := l.front(t, Config{Pick: to(proxyIP + ":69"), Transparent: true})
	conn := l.udp(t)
	defer conn.Close()
	if _, err := conn.WriteToUDPAddrPort(rrq("f"), netip.MustParseAddrPort(proxyIP+":69")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "loop", func() bool { return f.drops(datagram.DropLoop) == 1 })
	if f.Sessions() != 0 {
		t.Errorf("%d sessions", f.Sessions())
	}
}

// Where answers do not come back, the line of the transfer says what to do.
func TestAnswersThatGoElsewhereAreExplained(t *testing.T) {
	l := newLab(t) // the server knows no way to the machines
	(&fileServer{files: map[string][]byte{"f": content(10)}}).listen(t, l.server, serverIP+":69")
	logged := new(buffer)
	f := l.front(t, Config{
		Pick: to(serverIP + ":69"), Transparent: true, Idle: 300 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(logged, nil)),
	})
	conn := l.udp(t)
	defer conn.Close()
	if _, err := conn.WriteToUDPAddrPort(rrq("f"), netip.MustParseAddrPort(proxyIP+":69")); err != nil {
		t.Fatal(err)
	}
	testwait.Until(t, "given up", func() bool { return f.outcomes(EndingNoAnswer) == 1 })
	testwait.Until(t, "a line of the log", func() bool { return strings.Contains(logged.String(), "docs/tftp.md") })
	for _, want := range []string{"level=WARN", "outcome=no_answer", "source=transparent", "remedy=", "docs/tftp.md"} {
		if !strings.Contains(logged.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, logged)
		}
	}
}

// Without the capability the route says so when it is opened.
func TestTransparentWithoutItsCapabilityIsRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to lose it")
	}
	err := withoutCapabilities(func() error {
		_, err := Listen(Config{
			Route: "pxe", Listen: netip.MustParseAddrPort("127.0.0.1:0"), Pick: to(serverIP + ":69"), Transparent: true,
		})
		return errors.Join(err, datagram.CatchAnswers())
	})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "tftp route pxe") ||
		!strings.Contains(err.Error(), "NET_RAW") || !strings.Contains(err.Error(), "CAP_NET_ADMIN is needed") {
		t.Errorf("got error %v", err)
	}
}

// dnsmasq with a directory for each client's address, as Smee has files for each machine: the requests of a Raspberry
// Pi's boot ROM and loader reach it from the machine's address.
func TestRaspberryPiGetsItsDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root to start the server")
	}
	dnsmasq := program(t, "dnsmasq", "dnsmasq-base")
	const serial = "a1b2c3d4"
	files := map[string]int{
		"bootcode.bin": 52_000, serial + "/config.txt": 60, serial + "/start4.elf": 900_000, serial + "/kernel8.img": 512 * 40,
	}
	root := t.TempDir()
	for name, size := range files {
		path := filepath.Join(root, clientIP, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content(size), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for dir := root; dir != filepath.Dir(os.TempDir()); dir = filepath.Dir(dir) {
		if dir != os.TempDir() {
			_ = os.Chmod(dir, 0o755)
		}
	}
	node := []string{
		"ip route add local default dev lo table 6969", "ip rule add pref 6970 nop",
		"ip rule add pref 6968 iif lo goto 6970", "ip rule add pref 6969 ipproto udp sport 69 lookup 6969",
	}
	for _, tt := range []struct {
		name   string
		caught func(*testing.T, *lab)
		server []string // commands on the server's side
		args   []string
	}{
		{"in a pod", func(t *testing.T, l *lab) { l.caught(t) }, []string{
			"ip route add default via 198.51.100.1 table 6969", "ip rule add pref 6969 ipproto udp lookup 6969",
		}, nil},
		{"on a node, from port 69", func(t *testing.T, l *lab) { commands(t, l.proxy.Do, node...) }, []string{
			"ip route add default via 198.51.100.1 table 6969", "ip rule add pref 6969 ipproto udp sport 69 lookup 6969",
		}, []string{"--tftp-single-port"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			commands(t, l.server.Do, tt.server...)
			tt.caught(t, l)
			start(t, l.server, append([]string{
				dnsmasq, "--no-daemon", "--conf-file=/dev/null", "--port=0", "--enable-tftp",
				"--tftp-root=" + root, "--tftp-unique-root=ip", "--user=root", "--listen-address=" + serverIP, "--pid-file=",
			}, tt.args...)...)
			f := l.front(t, Config{Pick: to(serverIP + ":69"), Transparent: true})
			conn := l.udp(t)
			defer conn.Close()
			testwait.Until(t, "dnsmasq up", func() bool {
				_, err := fetch{file: "bootcode.bin", tries: 1, local: conn}.run(l.client, proxyIP+":69")
				return err == nil
			})
			raspberryPi(t, l, conn, serial, files)
			// What is not the machine's is not there for it, and through a route that hides it nothing is.
			if _, err := (fetch{file: "bootsig.bin", local: conn}).run(l.client, proxyIP+":69"); err == nil {
				t.Error("got a file that is not there")
			}
			if got := f.outcomes(EndingTimeout) + f.outcomes(EndingNoAnswer); got != 0 {
				t.Errorf("%d transfers without an end", got)
			}
			hidden := l.front(t, Config{Pick: to(serverIP + ":69"), Listen: netip.MustParseAddrPort(proxyIP + ":6900")})
			if _, err := (fetch{file: serial + "/config.txt"}).run(l.client, proxyIP+":6900"); err == nil ||
				hidden.outcomes(EndingServerError) != 1 {
				t.Errorf("a server that does not see the machine gave its file: %v", err)
			}
		})
	}
}

// raspberryPi asks as the loader does: the size first, then the file, all from one port.
func raspberryPi(t *testing.T, l *lab, conn *net.UDPConn, serial string, files map[string]int) {
	t.Helper()
	for _, file := range []string{"config.txt", "start4.elf", "fixup4.dat", "kernel8.img", "cmdline.txt"} {
		size, there := files[serial+"/"+file]
		got, err := fetch{
			file: serial + "/" + file, options: []string{"tsize", "0", "blksize", "1024"}, local: conn,
		}.run(l.client, proxyIP+":69")
		if !there {
			if err == nil {
				t.Errorf("%s: got %d bytes of what is not there", file, len(got))
			}
			continue
		}
		if err != nil || !bytes.Equal(got, content(size)) {
			t.Errorf("%s: got %d bytes of %d, %v", file, len(got), size, err)
		}
	}
}
