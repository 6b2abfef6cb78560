package route

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Listen is a port, on one address or on all.
type Listen netip.AddrPort

// AddrPort is the value as the fronts take it; the address is invalid for all addresses.
func (l Listen) AddrPort() netip.AddrPort { return netip.AddrPort(l) }

// Addr is invalid for all addresses.
func (l Listen) Addr() netip.Addr { return netip.AddrPort(l).Addr() }

// String writes a port on all addresses as ":69".
func (l Listen) String() string {
	a := netip.AddrPort(l)
	if isAll(a.Addr()) {
		return ":" + strconv.Itoa(int(a.Port()))
	}
	return a.String()
}

// MarshalText implements encoding.TextMarshaler.
func (l Listen) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Listen) UnmarshalText(text []byte) error {
	s := string(text)
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = "", s
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return fmt.Errorf("%q is no port or address: write it as 69, 192.0.2.1:69 or [2001:db8::1]:69", s)
	}
	var addr netip.Addr
	if host != "" {
		if addr, err = netip.ParseAddr(host); err != nil {
			return fmt.Errorf("%q is no port or address: %q is not an IP address", s, host)
		}
		if isAll(addr) {
			addr = netip.Addr{}
		}
	}
	*l = Listen(netip.AddrPortFrom(addr, uint16(number)))
	return nil
}

// Backend says where a route's endpoints are found.
type Backend struct {
	Host string // a DNS name or an address
	Port uint16
	// Service is a Kubernetes Service; Host is empty then.
	Service *Service
}

// Service is a Kubernetes Service and one of its ports, by number or name.
type Service struct{ Namespace, Name, Port string }

// String writes a backend as the file has it.
func (b Backend) String() string {
	switch {
	case b.Service != nil && b.Service.Namespace != "":
		return "service:" + b.Service.Namespace + "/" + b.Service.Name + ":" + b.Service.Port
	case b.Service != nil:
		return "service:" + b.Service.Name + ":" + b.Service.Port
	default:
		return net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
}

// MarshalText implements encoding.TextMarshaler.
func (b Backend) MarshalText() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (b *Backend) UnmarshalText(text []byte) error {
	s := string(text)
	if strings.HasPrefix(s, "srv:") {
		return fmt.Errorf("%q: service records are not looked up: write host:port, or service:NAMESPACE/NAME:PORT", s)
	}
	if rest, ok := strings.CutPrefix(s, "service:"); ok {
		name, port, ok := strings.Cut(rest, ":")
		namespace := ""
		if before, after, ok := strings.Cut(name, "/"); ok {
			namespace, name = before, after
		}
		if !ok || name == "" || port == "" || CheckHost(name) != nil {
			return fmt.Errorf("%q is no Kubernetes Service: write it as service:NAMESPACE/NAME:PORT", s)
		}
		*b = Backend{Service: &Service{namespace, name, port}}
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is no backend: write it as host:port", s)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return fmt.Errorf("%q is no backend: %q is not a port", s, port)
	}
	if err := CheckHost(host); err != nil {
		return fmt.Errorf("%q is no backend: %w", s, err)
	}
	*b = Backend{Host: host, Port: uint16(number)}
	return nil
}

// CheckHost accepts addresses and DNS names (RFC 1123, and the underscores of RFC 2782), with or without the
// trailing dot.
func CheckHost(name string) error {
	if _, err := netip.ParseAddr(name); err == nil {
		return nil
	}
	name = strings.TrimSuffix(name, ".")
	if name == "" {
		return errors.New("the host is missing")
	}
	if len(name) > 253 {
		return errors.New("the name is longer than 253 characters")
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "-") != label {
			return fmt.Errorf("%q is not a DNS name", name)
		}
		for _, c := range label {
			if !strings.ContainsRune("-_", c) && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
				return fmt.Errorf("%q is not a DNS name", name)
			}
		}
	}
	return nil
}
