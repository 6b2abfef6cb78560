package server

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
)

// Split parses "host" or "host:port"; IPv6 addresses with a port are in brackets. otherwise is the port where none is
// named.
func Split(s string, otherwise uint16) (host string, port uint16, err error) {
	host, port = s, otherwise
	if h, p, splitErr := net.SplitHostPort(s); splitErr == nil {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return "", 0, errors.New("port " + strconv.Quote(p) + " is not within 1 and 65535")
		}
		host, port = h, uint16(n)
	}
	if host == "" {
		return "", 0, errors.New("no host")
	}
	return host, port, nil
}

// Usable tells an address that others can reach: not loopback (trap of the incumbent: 127.1.1.1), unspecified, a group,
// or an IPv6 address that is good on one link only.
func Usable(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.Is4In6() || a.Is4() && a.IsLinkLocalUnicast()
}
