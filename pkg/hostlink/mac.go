package hostlink

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

// StableMAC derives a locally administered unicast address (IEEE 802-2014 8.4) from names: always the same from the
// same, and with near certainty another from others.
func StableMAC(names ...string) net.HardwareAddr {
	sum := sha256.Sum256([]byte(strings.Join(names, "\x00")))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^1 | 2
	return mac
}

// CheckName says why the kernel would not take a name for a link.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("empty name")
	case len(name) >= unix.IFNAMSIZ:
		return fmt.Errorf("%q is longer than %d bytes", name, unix.IFNAMSIZ-1)
	case name == "." || name == ".." || name == "all" || name == "default" || name == "lo":
		return fmt.Errorf("%q is reserved", name)
	case strings.ContainsAny(name, "/: \t\n%"):
		return fmt.Errorf("%q has a character that no interface may have", name)
	default:
		return nil
	}
}
