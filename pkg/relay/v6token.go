package relay

import (
	"crypto/hmac"
	"encoding/binary"

	"github.com/tinkerbell/stack/pkg/dhcp6"
)

// A token of DHCPv6 is behind the name in the Interface-Id, which a server repeats (RFC 9915 section 21.18).
//
//	listener (2) | port (2) | MAC address (6) | local address (16) | when, in Unix seconds (4) | HMAC-SHA-256 (first 8)
//
// The code also covers the peer address, the link address, the transaction and the client identifier, so that a token
// is valid for one transaction only.
const (
	tokenBody = 2 + 2 + 6 + 16 + 4
	tokenLen6 = tokenBody + tokenCode
)

// code6 authenticates the body of a token.
func (s *signer) code6(peer, link [16]byte, client dhcp6.Message, body []byte) []byte {
	b := append(append(s.input[:0], peer[:]...), link[:]...)
	b = binary.BigEndian.AppendUint32(b, client.XID())
	duid, _ := client.Option(dhcp6.OptionClientID)
	return s.code(append(b, body...), duid)
}

// appendInterfaceID appends the Interface-Id: the listener's name, and the token where there is a key. o is final.
func (w *worker) appendInterfaceID(b []byte, k *key, o *origin, m dhcp6.Message, now int64) []byte {
	name := w.relay.nameOf(o.listener)
	if w.signer == nil {
		b = append(b, 0, dhcp6.OptionInterfaceID, 0, byte(len(name)))
		return append(b, name...)
	}
	b = append(b, 0, dhcp6.OptionInterfaceID, 0, byte(len(name)+tokenLen6))
	b = append(b, name...)
	start := len(b)
	b = binary.BigEndian.AppendUint16(b, uint16(o.listener))
	b = binary.BigEndian.AppendUint16(b, o.port)
	b = append(b, o.mac[:]...)
	b = append(b, o.local[:]...)
	b = binary.BigEndian.AppendUint32(b, w.relay.unix(now))
	client, _ := m.Innermost()
	return append(b, w.signer.code6(k.sender, o.link, client, b[start:])...)
}

// interfaceID reads the Interface-Id of a reply. valid tells that its token is, which has the origin; foreign that it
// is one that this relay never sends. Neither is true where there is none.
func (w *worker) interfaceID(m, client dhcp6.Message, now int64) (o origin, valid, foreign bool) {
	value, found := m.Option(dhcp6.OptionInterfaceID)
	if !found {
		return o, false, false
	}
	if len(value) < tokenLen6 {
		return o, false, true
	}
	token := value[len(value)-tokenLen6:]
	body := token[:tokenBody]
	if !hmac.Equal(w.signer.code6(m.Peer(), m.Link(), client, body), token[tokenBody:]) ||
		!recent(body[26:], w.relay.unix(now), w.relay.config.maxAge()) {
		return o, false, true
	}
	o.listener = int16(binary.BigEndian.Uint16(body))
	o.local, o.link = [16]byte(body[10:]), m.Link()
	o.port, o.mac = binary.BigEndian.Uint16(body[2:]), [6]byte(body[4:])
	if o.listener < unicast || int(o.listener) >= len(w.relay.vlans) {
		return o, false, true // of a replica with other settings
	}
	return o, true, false
}
