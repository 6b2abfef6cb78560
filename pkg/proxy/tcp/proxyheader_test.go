package tcp

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
)

// TestOddProxyHeaders has the headers that a trusted peer may send, and the client that the endpoint is told; none
// where the header is refused.
func TestOddProxyHeaders(t *testing.T) {
	const signature = "\r\n\r\n\x00\r\nQUIT\n"
	v4 := "\xc0\x00\x02\x07\xc0\x00\x02\x01\x04\xd2\x00\x50" // 192.0.2.7:1234 to 192.0.2.1:80
	mapped := func(four string) string { return strings.Repeat("\x00", 10) + "\xff\xff" + four }
	v6 := mapped(v4[:4]) + mapped(v4[4:8]) + v4[8:]
	told := "PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\r\n"
	peer := "PROXY TCP4 127.0.0.1 127.0.0.1 "
	for name, test := range map[string]struct{ in, want string }{
		"v2":                       {signature + "\x21\x11\x00\x0c" + v4, told},
		"v2, a TLV":                {signature + "\x21\x11\x00\x10" + v4 + "\x04\x00\x01x", told},
		"v2, a checksum":           {signature + "\x21\x11\x00\x17" + v4 + "\x03\x00\x04\x81\x19\x91\xeb\x04\x00\x01x", told},
		"v2, a wrong checksum":     {signature + "\x21\x11\x00\x17" + v4 + "\x03\x00\x04\x00\x00\x00\x01\x04\x00\x01x", ""},
		"v2, a short checksum":     {signature + "\x21\x11\x00\x10" + v4 + "\x03\x00\x01\x00", ""},
		"v2, a TLV beyond its end": {signature + "\x21\x11\x00\x10" + v4 + "\x04\x00\x02x", ""},
		"v2, IPv4 in IPv6":         {signature + "\x21\x21\x00\x24" + v6, told},
		"v2, local":                {signature + "\x20\x00\x00\x00", peer},
		"v2, local with address":   {signature + "\x20\x11\x00\x0c" + v4, peer},
		"v2, unspecified":          {signature + "\x21\x00\x00\x00", ""}, // the protocol leaves it to us
		"v2, local, no family":     {signature + "\x20\x51\x00\x04abcd", ""},
		"v2, datagram":             {signature + "\x21\x12\x00\x0c" + v4, peer},
		"v2, too short":            {signature + "\x21\x11\x00\x04" + v4, ""},
		"v2, too long":             {signature + "\x21\x11\xff\xff" + v4 + strings.Repeat("\x00", 65535), ""},
		"v2, no such command":      {signature + "\x22\x11\x00\x0c" + v4, ""},
		"v2, no such family":       {signature + "\x21\x51\x00\x0c" + v4, ""},
		"v2, ends early":           {signature + "\x21\x11", ""},
		"v1, unknown":              {"PROXY UNKNOWN\r\n", peer},
		"v1, unknown, and more":    {"PROXY UNKNOWN ff:: ff:: 1 2\r\n", peer},
		"v1, a zone":               {"PROXY TCP6 fe80::1%lo fe80::2 1 2\r\n", ""},
		"v1, a wide port":          {"PROXY TCP4 192.0.2.7 192.0.2.1 65536 80\r\n", ""},
		"v1, another family":       {"PROXY TCP4 2001:db8::1 192.0.2.1 1 80\r\n", ""},
		"v1, without end":          {"PROXY TCP4 " + strings.Repeat("1", 200), ""},
		"v1, LF alone":             {"PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\n", ""},
		"garbage":                  {"\x16\x03\x01\x02\x00", ""},
		"IPv6":                     {"PROXY TCP6 2001:db8::7 2001:db8::1 1234 80\r\n", "PROXY TCP6 2001:db8::7 2001:db8::1 1234 80\r\n"},
		"another header as bytes":  {told + "PROXY TCP4 192.0.2.9 192.0.2.1 1 80\r\n", told + "PROXY TCP4 192.0.2.9 192.0.2.1 1 80\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, Settings{AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, SendProxy: 1},
				backend(t, echo))
			conn := r.dial(t)
			want := test.want
			if want == peer {
				_, port, _ := strings.Cut(conn.LocalAddr().String(), ":")
				want += fmt.Sprintf("%s %d\r\n", port, r.Addr().Port())
			}
			_, _ = io.WriteString(conn, test.in)
			if want != "" {
				_, _ = io.WriteString(conn, "x")
				want += "x"
			}
			_ = conn.CloseWrite()
			if got, err := io.ReadAll(conn); string(got) != want || (err == nil) != (want != "") {
				t.Errorf("got %q, %v; want %q", got, err, want)
			}
		})
	}
}

// A header of version 2 may come byte by byte.
func TestSlowProxyHeader(t *testing.T) {
	r := start(t, Settings{AcceptProxy: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, SendProxy: 1},
		backend(t, echo))
	conn := r.dial(t)
	for _, b := range []byte("\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\xc0\x00\x02\x01\x04\xd2\x00\x50x") {
		if _, err := conn.Write([]byte{b}); err != nil {
			t.Fatal(err)
		}
	}
	_ = conn.CloseWrite()
	if got, err := io.ReadAll(conn); string(got) != "PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\r\nx" {
		t.Errorf("got %q, %v", got, err)
	}
}
