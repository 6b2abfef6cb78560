package relay

import (
	"net/netip"
	"slices"
)

// probe6 is one case of DHCPv6: how it changes what a client sends, or the server's answer to it.
type probe6 struct {
	name, what string
	request    func(*sending6)
	reply      func(*answer6)
	bare       bool // the relay has no address on the LAN but its link-local one
}

// another is the address of a link behind another relay.
var another = netip.MustParseAddr("2001:db8:77::1").As16()

// kind changes the message's type.
func kind(msgType byte) func(*sending6) {
	return func(s *sending6) { s.data[0] = msgType }
}

// relayed wraps what the client sent as another relay on the LAN does.
func relayed(hops byte, link [16]byte) func(*sending6) {
	return func(s *sending6) {
		m := slices.Concat([]byte{msgRelayForw, hops}, link[:], []byte{0: 0xfe, 1: 0x80, 15: 0x99})
		s.port = serverPort
		s.data = option6(m, optRelayMessage, s.data)
	}
}

// nested wraps what the client sent so many times, and says a hop count of its own.
func nested(times int, hops byte) func(*sending6) {
	return func(s *sending6) {
		for range times {
			relayed(hops, another)(s)
		}
	}
}

// padded adds an option of so many bytes.
func padded(length int) func(*sending6) {
	return func(s *sending6) { s.data = option6(s.data, 65000, make([]byte, length)) }
}

func asAnswered(*answer6) {}

// probes6 are the cases. Their names are those of the table of DHCPv6 in PEERS.md.
var probes6 = []probe6{
	{name: "solicit", what: "a SOLICIT"},
	{name: "information", what: "an INFORMATION-REQUEST", request: kind(11)},
	{name: "unknown-type", what: "a message of type 200", request: kind(200)},
	{name: "from-global", what: "a REBIND from the client's global address", request: func(s *sending6) {
		s.data[0] = 6
		s.source = netip.MustParseAddr(machinesLAN6).As16()
	}},
	{name: "advertise-on-lan", what: "an ADVERTISE from the LAN", request: kind(msgAdvertise)},
	{name: "reconfigure-on-lan", what: "a RECONFIGURE from the LAN", request: kind(msgReconfigure)},
	{name: "relay-repl-on-lan", what: "a RELAY-REPL from the LAN", request: func(s *sending6) {
		relayed(0, another)(s)
		s.data[0] = msgRelayRepl
	}},
	{name: "bad-checksum", what: "a wrong UDP checksum", request: func(s *sending6) { s.badSum = true }},
	{name: "short", what: "3 bytes", request: func(s *sending6) { s.data = s.data[:3] }},
	{name: "no-options", what: "a SOLICIT without options", request: func(s *sending6) { s.data = s.data[:4] }},
	{name: "cut-option", what: "an option longer than the message", request: func(s *sending6) {
		s.data = append(s.data, 0, 16, 0xff, 0xff, 1)
	}},
	{name: "large", what: "a SOLICIT of 1,400 bytes", request: func(s *sending6) { padded(1400 - len(s.data) - 4)(s) }},
	{name: "oversize", what: "a SOLICIT that fills the MTU of 1,500", request: func(s *sending6) {
		padded(1452 - len(s.data) - 4)(s)
	}},
	{name: "other-relay", what: "a RELAY-FORW of another relay", request: relayed(0, another)},
	{name: "zero-link", what: "a RELAY-FORW with link-address zero (RFC 6221)", request: relayed(0, [16]byte{})},
	{name: "hop-7", what: "a RELAY-FORW, hop-count 7", request: relayed(7, another)},
	{name: "hop-8", what: "a RELAY-FORW, hop-count 8", request: relayed(8, another)},
	{name: "hop-10", what: "a RELAY-FORW, hop-count 10", request: relayed(10, another)},
	{name: "hop-32", what: "a RELAY-FORW, hop-count 32", request: relayed(32, another)},
	{name: "nested-12", what: "12 RELAY-FORW in each other, each of hop-count 0", request: nested(12, 0)},
	{name: "no-relay-message", what: "a RELAY-FORW without a message", request: func(s *sending6) {
		relayed(0, another)(s)
		s.data = s.data[:relayHead]
	}},
	{
		name: "own-link", what: "a RELAY-FORW with our own link-address",
		request: relayed(0, netip.MustParseAddr(relayLAN6).As16()),
	},
	{name: "no-global", what: "a SOLICIT where the relay's interface has no global address", bare: true},

	{name: "reply", what: "an ADVERTISE", reply: asAnswered},
	{
		name: "reply-no-global", what: "an ADVERTISE where the relay's interface has no global address",
		reply: asAnswered, bare: true,
	},
	{name: "reply-other-relay", what: "an answer for another relay", request: relayed(0, another), reply: asAnswered},
	{name: "no-interface-id", what: "an answer without Interface-Id", reply: func(a *answer6) { a.interfaceID = nil }},
	{name: "wrong-interface-id", what: "an answer with another Interface-Id", reply: func(a *answer6) {
		a.interfaceID = []byte("nonsense")
	}},
	{name: "no-link-no-id", what: "an answer without Interface-Id, link-address zero", reply: func(a *answer6) {
		a.interfaceID, a.link = nil, [16]byte{}
	}},
	{name: "other-port", what: "an answer from port 10547", reply: func(a *answer6) { a.port = 10547 }},
	{name: "reply-hops", what: "an answer whose hop-count is another", reply: func(a *answer6) { a.hops = 9 }},
	{name: "reconfigure", what: "a RECONFIGURE in place of the answer", reply: func(a *answer6) {
		a.message[0] = msgReconfigure
	}},
	{name: "unasked", what: "an ADVERTISE of another transaction", reply: func(a *answer6) { a.message[3] ^= 0xff }},
	{name: "other-peer", what: "an answer to another peer-address", reply: func(a *answer6) {
		a.peer = linkLocal(machinesLinkLocal - 2)
	}},
	{name: "request-in-reply", what: "a SOLICIT in a RELAY-REPL", reply: func(a *answer6) { a.message[0] = msgSolicit }},
	{name: "reply-no-message", what: "a RELAY-REPL without a message", reply: func(a *answer6) { a.message = nil }},
	{name: "reply-not-wrapped", what: "an ADVERTISE in no RELAY-REPL", reply: func(a *answer6) { a.bare = true }},
	{name: "reply-cut", what: "an answer with a cut option", reply: func(a *answer6) {
		a.message = append(a.message, 0, 16, 0xff, 0xff, 1)
	}},
}
