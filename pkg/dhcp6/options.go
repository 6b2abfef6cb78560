package dhcp6

import "encoding/binary"

// Options that a relay agent looks at, or adds (section 21 unless noted).
const (
	OptionClientID       = 1
	OptionServerID       = 2
	OptionIANA           = 3
	OptionIATA           = 4
	OptionIAAddress      = 5
	OptionElapsedTime    = 8
	OptionRelayMessage   = 9
	OptionUserClass      = 15
	OptionVendorClass    = 16
	OptionInterfaceID    = 18
	OptionIAPD           = 25
	OptionIAPrefix       = 26
	OptionBootFileURL    = 59  // RFC 5970
	OptionClientArch     = 61  // RFC 5970
	OptionClientLinkAddr = 79  // RFC 6939
	OptionDHCPv4Message  = 87  // RFC 7341
	OptionRelayPort      = 135 // RFC 8357
)

// next reads the option at the begin of b. ok is false if it claims more bytes than there are.
func next(b []byte) (code uint16, value, rest []byte, ok bool) {
	if len(b) < OptionHeader {
		return 0, nil, nil, false
	}
	end := OptionHeader + int(binary.BigEndian.Uint16(b[2:]))
	if end > len(b) {
		return 0, nil, nil, false
	}
	return binary.BigEndian.Uint16(b), b[OptionHeader:end], b[end:], true
}

// find returns the first option of a code in a list of options; it shares the memory.
func find(options []byte, want uint16) (value []byte, found bool) {
	for {
		code, value, rest, ok := next(options)
		if !ok {
			return nil, false
		}
		if code == want {
			return value, true
		}
		options = rest
	}
}

// options is what stands behind the fixed part.
func (m Message) options() []byte {
	if m.IsRelay() {
		return m[RelayHeader:]
	}
	return m[clientHeader:]
}

// Option finds the first option of a code in the message itself, not in those inside of it; it shares the message's
// memory.
func (m Message) Option(want uint16) (value []byte, found bool) { return find(m.options(), want) }

// Append appends an option.
func Append(b []byte, code uint16, value []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, code)
	b = binary.BigEndian.AppendUint16(b, uint16(len(value)))
	return append(b, value...)
}

// hardwareEthernet is the hardware type of Ethernet in DUIDs and option 79 (RFC 826).
const hardwareEthernet = 1

// AppendClientLinkAddr appends the Client Link-Layer Address option (RFC 6939 section 4) of an Ethernet address.
func AppendClientLinkAddr(b []byte, mac [6]byte) []byte {
	b = append(b, 0, OptionClientLinkAddr, 0, 2+6, 0, hardwareEthernet)
	return append(b, mac[:]...)
}

// ClientLinkAddr is the client's Ethernet address as a relay agent has put it into a relay message (RFC 6939).
func (m Message) ClientLinkAddr() (mac [6]byte, found bool) {
	value, found := m.Option(OptionClientLinkAddr)
	if !found || len(value) != 2+6 || value[0] != 0 || value[1] != hardwareEthernet {
		return mac, false
	}
	return [6]byte(value[2:]), true
}

// AppendRelayPort appends the Relay Source Port option (RFC 8357 section 5.2): the UDP port from which the relay agent
// one nearer to the client has sent, 0 if it was the usual one.
func AppendRelayPort(b []byte, port uint16) []byte {
	return Append(b, OptionRelayPort, []byte{byte(port >> 8), byte(port)})
}

// Options are the options of the message itself, not of those inside of it; values share the message's memory.
func (m Message) Options(yield func(code uint16, value []byte) bool) {
	for options := m.options(); ; {
		code, value, rest, ok := next(options)
		if !ok || !yield(code, value) {
			return
		}
		options = rest
	}
}

// holder is an option that holds addresses or prefixes: the length of what stands in front of those, the option that
// holds one, and where in it the address and its valid lifetime are (sections 21.4 to 21.6, 21.21, 21.22).
type holder struct {
	code, one                uint16
	skip, address, valid, of int
}

var holders = [...]holder{
	{code: OptionIANA, one: OptionIAAddress, skip: 12, address: 0, valid: 20, of: 24},
	{code: OptionIATA, one: OptionIAAddress, skip: 4, address: 0, valid: 20, of: 24},
	{code: OptionIAPD, one: OptionIAPrefix, skip: 12, address: 9, valid: 4, of: 25},
}

// Grants tells whether a server's message gives its client an address or a prefix: one with a valid lifetime.
func (m Message) Grants() bool {
	_, _, found := m.Granted()
	return found
}

// Granted is the first address or prefix that a server's message gives its client, and its valid lifetime in seconds.
func (m Message) Granted() (address [16]byte, seconds uint32, found bool) {
	for i := range holders {
		for code, value := range m.Options {
			if code != holders[i].code || len(value) < holders[i].skip {
				continue
			}
			if address, seconds, found = holders[i].first(value); found {
				return address, seconds, true
			}
		}
	}
	return address, 0, false
}

// first is the first address in the value of an option that has a valid lifetime.
func (h *holder) first(value []byte) (address [16]byte, seconds uint32, found bool) {
	for within := value[h.skip:]; ; {
		code, value, rest, ok := next(within)
		if !ok {
			return address, 0, false
		}
		if code == h.one && len(value) >= h.of {
			if seconds = binary.BigEndian.Uint32(value[h.valid:]); seconds != 0 {
				return [16]byte(value[h.address:]), seconds, true
			}
		}
		within = rest
	}
}
