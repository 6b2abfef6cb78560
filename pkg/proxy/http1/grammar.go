package http1

import (
	"bytes"
	"net/netip"
	"strings"
)

// ValidHost is whether a Host is empty, or a name or an address, perhaps with a port (RFC 9110, section 7.2; RFC 3986,
// section 3.2.2).
func ValidHost(host string) bool {
	if host == "" {
		return true
	}
	if literal, ok := strings.CutPrefix(host, "["); ok {
		text, port, ok := strings.Cut(literal, "]")
		addr, err := netip.ParseAddr(text)
		return ok && err == nil && addr.Is6() && addr.Zone() == "" && (port == "" || port[0] == ':' && allDigits(port[1:]))
	}
	name, port, _ := strings.Cut(host, ":")
	if name == "" || !allDigits(port) {
		return false
	}
	for i := range len(name) {
		if !regNameByte[name[i]] || name[i] == '%' && !Encoded(name[i:]) {
			return false
		}
	}
	return true
}

// TargetByte is whether a byte may stand in a path or a query (RFC 3986, sections 3.3 and 3.4).
func TargetByte(c byte) bool { return targetByte[c] }

// Encoded is whether a text begins with a percent-encoded byte (RFC 3986, section 2.1).
func Encoded[T string | []byte](text T) bool {
	return len(text) > 2 && text[0] == '%' && hexDigit(text[1]) && hexDigit(text[2])
}

// plainTarget reports whether a target is a path, perhaps with a query, that all parsers read alike.
func plainTarget(target []byte) bool {
	if len(target) == 0 || target[0] != '/' || bytes.HasPrefix(target, []byte("//")) || !all(target, &targetByte) {
		return false
	}
	for i, c := range target {
		if c == '%' && !Encoded(target[i:]) {
			return false
		}
	}
	return true
}

// plainHost reports whether a Host consists of letters, digits and "-_.:", or is an IPv6 address in brackets. Only the
// latter costs an allocation.
func plainHost(host []byte) bool {
	if len(host) == 0 || !all(host, &hostByte) {
		return false
	}
	if host[0] == '[' {
		return ValidHost(string(host))
	}
	name, port, _ := bytes.Cut(host, []byte(":"))
	return len(name) > 0 && !bytes.ContainsAny(name, "[]") && allDigits(port)
}

// number reads digits, of which no length in bytes has more than 18.
func number(digits []byte) (n int64, ok bool) {
	if len(digits) == 0 || len(digits) > 18 || !allDigits(digits) {
		return 0, false
	}
	for _, c := range digits {
		n = 10*n + int64(c-'0')
	}
	return n, true
}

func allDigits[T string | []byte](text T) bool {
	for i := range len(text) {
		if c := text[i]; c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func hexDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// set is a set of bytes.
type set [256]bool

const alphanumeric = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

var (
	nameByte   = setOf(alphanumeric + "-_")
	hostByte   = setOf(alphanumeric + "-_.:[]")
	targetByte = setOf(alphanumeric + "-._~!$&'()*+,;=:@/?%")
	// regNameByte are the bytes of a registered name: unreserved, sub-delims, and the percent sign.
	regNameByte = setOf(alphanumeric + "-._~!$&'()*+,;=%")
	valueByte   = func() (s set) {
		for c := ' '; c <= '~'; c++ {
			s[c] = true
		}
		s['\t'] = true
		return s
	}()
)

func setOf(bytes string) (s set) {
	for _, c := range []byte(bytes) {
		s[c] = true
	}
	return s
}

func all(b []byte, s *set) bool {
	for _, c := range b {
		if !s[c] {
			return false
		}
	}
	return true
}
