package forward

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	core "k8s.io/api/core/v1"
)

// stateListening is a listening socket's in /proc/net/tcp (TCP_LISTEN), stateUnconnected a UDP socket's that receives
// from anywhere (TCP_CLOSE).
const stateListening, stateUnconnected = "0A", "07"

// holderOf says which socket of this host has a port, as far as this process may know.
func holderOf(k key) string {
	name, state := "tcp", stateListening
	if k.protocol == core.ProtocolUDP {
		name, state = "udp", stateUnconnected
	}
	for _, each := range []string{name, name + "6"} {
		if each == name && k.at.Addr().Is6() {
			continue
		}
		text, err := os.ReadFile("/proc/thread-self/net/" + each)
		if err != nil {
			continue // no IPv6
		}
		for line := range bytes.Lines(text) {
			s, ok := parseSocket(string(line))
			if !ok || s.state != state || s.at.Port() != k.at.Port() ||
				!s.at.Addr().IsUnspecified() && s.at.Addr() != k.at.Addr() {
				continue
			}
			return fmt.Sprintf("%s, which listens at %s/%s", programOf(s), s.at, name)
		}
	}
	return "another program of this node"
}

// socket is a line of /proc/net/tcp and the like.
type socket struct {
	at         netip.AddrPort
	state      string
	uid, inode string
}

// parseSocket reads a line: "sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode".
func parseSocket(line string) (s socket, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 10 {
		return s, false
	}
	ip, port, found := strings.Cut(fields[1], ":")
	number, err := strconv.ParseUint(port, 16, 16)
	words, bad := hex.DecodeString(ip)
	if !found || err != nil || bad != nil || len(words) != 4 && len(words) != 16 {
		return s, false
	}
	for i := 0; i < len(words); i += 4 { // each word is written as the host's number
		binary.NativeEndian.PutUint32(words[i:], binary.BigEndian.Uint32(words[i:]))
	}
	addr, _ := netip.AddrFromSlice(words)
	return socket{netip.AddrPortFrom(addr.Unmap(), uint16(number)), fields[3], fields[7], fields[9]}, true
}

// programOf finds the program that has a socket; in a container it sees its own alone.
func programOf(s socket) string {
	links, _ := filepath.Glob("/proc/[0-9]*/fd/[0-9]*")
	for _, link := range links {
		if to, err := os.Readlink(link); err != nil || to != "socket:["+s.inode+"]" {
			continue
		}
		process := strings.Split(link, "/")[2]
		if name, err := os.ReadFile("/proc/" + process + "/comm"); err == nil {
			return fmt.Sprintf("%s (process %s)", strings.TrimSpace(string(name)), process)
		}
	}
	return fmt.Sprintf("a program of this node (user %s)", s.uid)
}
