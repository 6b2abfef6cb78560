package hostlink

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// route is a default route.
type route struct {
	device string
	metric uint64
}

// readProc reads a file of the node's network in procfs. One that the kernel has not is empty.
func (h *Host) readProc(name string) ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(h.proc, "net", name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("failed to read the node's network: %w", err)
	}
	return text, nil
}

// defaultRoutes4 reads /proc/net/route, whose columns are: interface, destination, gateway, flags, references, use,
// metric (decimal), mask, MTU, window, IRTT.
func defaultRoutes4(text []byte) []route {
	var routes []route
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		flags, err := strconv.ParseUint(f[3], 16, 32)
		metric, err2 := strconv.ParseUint(f[6], 10, 32)
		if err == nil && err2 == nil && usable(flags) {
			routes = append(routes, route{device: f[0], metric: metric})
		}
	}
	return routes
}

// defaultRoutes6 reads /proc/net/ipv6_route, whose columns are all hexadecimal: destination, its length, source, its
// length, gateway, metric, references, use, flags; and the interface.
func defaultRoutes6(text []byte) []route {
	const unspecified = "00000000000000000000000000000000"
	var routes []route
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[0] != unspecified || f[1] != "00" || f[3] != "00" || f[9] == "lo" {
			continue
		}
		flags, err := strconv.ParseUint(f[8], 16, 32)
		metric, err2 := strconv.ParseUint(f[5], 16, 32)
		if err == nil && err2 == nil && usable(flags) {
			routes = append(routes, route{device: f[9], metric: metric})
		}
	}
	return routes
}

// usable says of a route's flags that it leads somewhere.
func usable(flags uint64) bool { return flags&unix.RTF_UP != 0 && flags&unix.RTF_REJECT == 0 }

// asErrno finds the kernel's error number.
func asErrno(err error) (unix.Errno, bool) {
	var errno unix.Errno
	ok := errors.As(err, &errno)
	return errno, ok
}
