package relay

import (
	"crypto/hmac"
	"encoding/binary"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// A token of DHCPv4 is in a vendor-specific sub-option of option 82 (RFC 4243) that a server echoes.
//
//	enterprise number (4) | length (1) | origin (18) | when, in Unix seconds (4) | HMAC-SHA-256 (first 8)
//
// The code also covers xid and chaddr, so that a token is valid for one transaction only.
const (
	// enterprise is the number reserved for examples (RFC 5612): only this relay reads the token.
	enterprise  = 32473
	tokenOrigin = 18
	tokenLen4   = 4 + 1 + tokenOrigin + 4 + tokenCode
)

// append4 appends the sub-option for a request. o must be final.
func (s *signer) append4(b []byte, k *key, o *origin, unix uint32) []byte {
	b = append(b, dhcp.SubVendor, tokenLen4)
	b = binary.BigEndian.AppendUint32(b, enterprise)
	b = append(b, tokenLen4-5)
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, uint16(o.listener))
	b = append(b, bit(o.sole)<<1, byte(o.added))
	b = append(b, o.giaddr[:]...)
	b = append(b, o.from.ip[12:]...)
	b = binary.BigEndian.AppendUint16(b, o.from.port)
	b = append(b, o.local[12:]...)
	b = binary.BigEndian.AppendUint32(b, unix)
	return append(b, s.code4(k, b[start:])...)
}

// code4 authenticates the body of a token.
func (s *signer) code4(k *key, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(s.input[:0], k.xid)
	b = append(append(b, k.sender[:]...), byte(k.id))
	return s.code(append(b, body...), nil)
}

// findToken returns the token in a message: the last one, since a relay agent before this one may have added one, too.
// Servers may sort the sub-options.
func findToken(m dhcp.Message) (token []byte, found bool) {
	for option82 := range m.Options82 {
		for code, value, rest, ok := dhcp.NextSub(option82); ok; code, value, rest, ok = dhcp.NextSub(rest) {
			if code == dhcp.SubVendor && len(value) == tokenLen4 && binary.BigEndian.Uint32(value) == enterprise {
				token, found = value, true
			}
		}
	}
	return token, found
}

// read4 finds the token in a reply and returns the origin that it vouches for. maxAge is in seconds.
func (s *signer) read4(m dhcp.Message, unix, maxAge uint32) (o origin, ok bool) {
	token, found := findToken(m)
	if !found {
		return o, false
	}
	body, k := token[5:5+tokenOrigin+4], keyOf(m)
	if !hmac.Equal(s.code4(&k, body), token[tokenLen4-tokenCode:]) || !recent(body[tokenOrigin:], unix, maxAge) {
		return o, false
	}
	o.listener = int16(binary.BigEndian.Uint16(body))
	o.sole, o.added = body[2]&2 != 0, dhcp.Subs(body[3])
	o.giaddr = [4]byte(body[4:])
	o.from = peer{ip: wide([4]byte(body[8:])), port: binary.BigEndian.Uint16(body[12:])}
	o.local = wide([4]byte(body[14:]))
	return o, true
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// wide is an IPv4 address as in IPv6, as netip.Addr.As16 has it.
func wide(a [4]byte) [16]byte {
	return [16]byte{10: 0xff, 11: 0xff, 12: a[0], 13: a[1], 14: a[2], 15: a[3]}
}
