package relay6

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/tinkerbell/stack/pkg/dhcp6"
)

// A token is an origin under a message authentication code, behind the name in the Interface-Id, which a server repeats
// (RFC 9915 section 21.18). It makes a reply recognisable to a replica, or a process, that never saw the request.
//
//	listener (2) | port (2) | MAC address (6) | local address (16) | when, in Unix seconds (4) | HMAC-SHA-256 (first 8)
//
// The code also covers the peer address, the link address, the transaction and the client identifier, so that a token
// is valid for one transaction only.
const (
	tokenBody = 2 + 2 + 6 + 16 + 4
	tokenMAC  = 8
	tokenLen  = tokenBody + tokenMAC
)

// signer makes and checks tokens. It is for one goroutine.
type signer struct {
	mac   hash.Hash
	input [16 + 16 + 4 + tokenBody]byte
	sum   [sha256.Size]byte
}

// newSigner returns nil where there is no key.
func newSigner(secret []byte) *signer {
	if len(secret) == 0 {
		return nil
	}
	return &signer{mac: hmac.New(sha256.New, secret)}
}

// code authenticates the body of a token.
func (s *signer) code(peer, link [16]byte, client dhcp6.Message, body []byte) []byte {
	copy(s.input[:], peer[:])
	copy(s.input[16:], link[:])
	binary.BigEndian.PutUint32(s.input[32:], client.XID())
	copy(s.input[36:], body)
	s.mac.Reset()
	s.mac.Write(s.input[:])
	duid, _ := client.Option(dhcp6.OptionClientID)
	s.mac.Write(duid)
	return s.mac.Sum(s.sum[:0])[:tokenMAC]
}

// appendInterfaceID appends the Interface-Id: the listener's name, and the token where there is a key. o is final.
func (d *worker) appendInterfaceID(b []byte, k key, o *origin, m dhcp6.Message, now int64) []byte {
	name := d.relay.nameOf(o.listener)
	if d.signer == nil {
		b = append(b, 0, dhcp6.OptionInterfaceID, 0, byte(len(name)))
		return append(b, name...)
	}
	b = append(b, 0, dhcp6.OptionInterfaceID, 0, byte(len(name)+tokenLen))
	b = append(b, name...)
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, uint16(o.listener))
	b = binary.BigEndian.AppendUint16(b, o.port)
	b = append(b, o.mac[:]...)
	b = append(b, o.local[:]...)
	b = binary.BigEndian.AppendUint32(b, d.relay.unix(now))
	client, _ := m.Innermost()
	return append(b, d.signer.code(k.peer, o.link, client, b[start:])...)
}

// interfaceID reads the Interface-Id of a reply. known tells that its token is valid, which has the origin; read is
// false for an Interface-Id that this relay never sends.
func (d *worker) interfaceID(m, client dhcp6.Message, now int64) (o origin, known, read bool) {
	value, found := m.Option(dhcp6.OptionInterfaceID)
	if !found {
		return o, false, true
	}
	if d.signer == nil {
		return o, false, true // names looks at it
	}
	if len(value) < tokenLen {
		return o, false, false
	}
	token := value[len(value)-tokenLen:]
	body := token[:tokenBody]
	if !hmac.Equal(d.signer.code(m.Peer(), m.Link(), client, body), token[tokenBody:]) {
		return o, false, false
	}
	// Clocks of replicas may differ a little, so the age may be negative.
	most := int32(d.relay.config.PendingExpiry.Seconds()) + 1
	if age := int32(d.relay.unix(now) - binary.BigEndian.Uint32(body[26:])); age > most || age < -most {
		return o, false, false
	}
	o = origin{
		listener: int16(binary.BigEndian.Uint16(body)),
		port:     binary.BigEndian.Uint16(body[2:]),
		mac:      [6]byte(body[4:]),
		local:    [16]byte(body[10:]),
		link:     m.Link(),
	}
	if o.listener < unicast || int(o.listener) >= len(d.relay.listeners) {
		return o, false, false // of a replica with other settings
	}
	return o, true, true
}
