package relay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// A token is an origin under a message authentication code, in a vendor-specific sub-option of option 82 (RFC 4243)
// that a server echoes. It makes a reply recognisable to a replica, or a process, that never saw the request.
//
//	enterprise number (4) | length (1) | origin (18) | when, in Unix seconds (4) | HMAC-SHA-256 (first 8)
//
// The code also covers xid and chaddr, so that a token is valid for one transaction only.
const (
	// enterprise is the number reserved for examples (RFC 5612): only this relay reads the token.
	enterprise  = 32473
	tokenOrigin = 18
	tokenMAC    = 8
	tokenLen    = 4 + 1 + tokenOrigin + 4 + tokenMAC
)

// signer makes and checks tokens. It is for one goroutine.
type signer struct {
	mac   hash.Hash
	input [4 + 17 + tokenOrigin + 4]byte
	sum   [sha256.Size]byte
}

// newSigner returns nil where there is no key.
func newSigner(secret []byte) *signer {
	if len(secret) == 0 {
		return nil
	}
	return &signer{mac: hmac.New(sha256.New, secret)}
}

// append appends the sub-option for a request. o must be final.
func (s *signer) append(b []byte, k key, o origin, unix uint32) []byte {
	b = append(b, dhcp.SubVendor, tokenLen)
	b = binary.BigEndian.AppendUint32(b, enterprise)
	b = append(b, tokenLen-5)
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, uint16(o.listener))
	b = append(b, bit(o.sole)<<1, byte(o.added))
	b = append(b, o.giaddr[:]...)
	b = append(b, o.from.ip[:]...)
	b = binary.BigEndian.AppendUint16(b, o.from.port)
	b = append(b, o.local[:]...)
	b = binary.BigEndian.AppendUint32(b, unix)
	return append(b, s.code(k, b[start:])...)
}

// code authenticates the body of a token.
func (s *signer) code(k key, body []byte) []byte {
	binary.BigEndian.PutUint32(s.input[:], k.xid)
	copy(s.input[4:], k.chaddr[:])
	s.input[20] = k.hlen
	copy(s.input[21:], body)
	s.mac.Reset()
	s.mac.Write(s.input[:])
	return s.mac.Sum(s.sum[:0])[:tokenMAC]
}

// find returns the token in a message: the last one, since a relay agent before this one may have added one, too.
// Servers may sort the sub-options.
func find(m dhcp.Message) (token []byte, found bool) {
	for agent := range m.Agents {
		for code, value, rest, ok := dhcp.NextSub(agent); ok; code, value, rest, ok = dhcp.NextSub(rest) {
			if code == dhcp.SubVendor && len(value) == tokenLen && binary.BigEndian.Uint32(value) == enterprise {
				token, found = value, true
			}
		}
	}
	return token, found
}

// blank takes the code out of a token, if there is one: a reader of a trace must not be able to answer.
func blank(m dhcp.Message) {
	if token, found := find(m); found {
		clear(token[tokenLen-tokenMAC:])
	}
}

// read finds the token in a reply and returns the origin that it vouches for. maxAge is in seconds.
func (s *signer) read(m dhcp.Message, unix, maxAge uint32) (origin, bool) {
	token, found := find(m)
	if !found {
		return origin{}, false
	}
	body := token[5 : 5+tokenOrigin+4]
	if !hmac.Equal(s.code(keyOf(m), body), token[tokenLen-tokenMAC:]) {
		return origin{}, false
	}
	// Clocks of replicas may differ a little, so the age may be negative.
	if age := int32(unix - binary.BigEndian.Uint32(body[tokenOrigin:])); age > int32(maxAge) || age < -int32(maxAge) {
		return origin{}, false
	}
	return origin{
		listener: int16(binary.BigEndian.Uint16(body)),
		sole:     body[2]&2 != 0,
		added:    dhcp.Subs(body[3]),
		giaddr:   [4]byte(body[4:]),
		from:     peer{ip: [4]byte(body[8:]), port: binary.BigEndian.Uint16(body[12:])},
		local:    [4]byte(body[14:]),
	}, true
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}
