package tftp

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// receiveBuffer looks through the process's descriptors for the socket of a port, and returns its SO_RCVBUF.
func receiveBuffer(t *testing.T, port uint16) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		sa, err := unix.Getsockname(fd)
		if v4, ok := sa.(*unix.SockaddrInet4); err != nil || !ok || v4.Port != int(port) {
			continue
		}
		if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err == nil {
			return n
		}
	}
	t.Fatalf("no socket has port %d", port)
	return 0
}

// A window makes room for itself, within bounds: the client proposes it, and the product of its two numbers exceeds
// what the kernel takes.
func TestWindowGrowsTheBuffer(t *testing.T) {
	l := newLab(t)
	var server *net.UDPConn
	l.server.Do(t, func() (err error) {
		server, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(serverIP+":69")))
		return err
	})
	defer server.Close()
	l.front(t, Config{Pick: to(serverIP + ":69")})
	sizes := map[string]int{}
	for _, tt := range []struct {
		name          string
		block, window int
	}{{"lockstep", 512, 1}, {"window", 1468, 256}, {"overflow", 16384, 65535}, {"gigabytes", 8192, 65535}} {
		conn := l.udp(t)
		defer conn.Close()
		if _, err := conn.WriteToUDPAddrPort(rrq("f"), netip.MustParseAddrPort(proxyIP+":69")); err != nil {
			t.Fatal(err)
		}
		_, from, err := server.ReadFromUDPAddrPort(make([]byte, 600))
		if err != nil {
			t.Fatal(err)
		}
		oack := fmt.Appendf([]byte{0, opOack}, "blksize\x00%d\x00windowsize\x00%d\x00", tt.block, tt.window)
		if _, err := server.WriteToUDPAddrPort(oack, from); err != nil {
			t.Fatal(err)
		}
		exchange(t, conn, nil, "")
		sizes[tt.name] = receiveBuffer(t, from.Port())
	}
	if sizes["window"] <= sizes["lockstep"] {
		t.Errorf("a window of 256 blocks has %d bytes of buffer, lockstep %d", sizes["window"], sizes["lockstep"])
	}
	for _, name := range []string{"overflow", "gigabytes"} {
		if got := sizes[name]; got < sizes["window"] || got > 16<<20 {
			t.Errorf("%s: one session has %d bytes of buffer", name, got)
		}
	}
}
