package dhcp

// Options that a relay agent looks at (RFC 2132 unless noted). It changes only OptionAgent.
const (
	OptionPad         = 0
	OptionMaxSize     = 57
	OptionHostName    = 12
	OptionRequestedIP = 50
	OptionType        = 53
	OptionLease       = 51
	OptionOverload    = 52
	OptionServerID    = 54
	OptionVendorClass = 60
	OptionClientID    = 61
	OptionBootFile    = 67
	OptionUserClass   = 77 // RFC 3004
	OptionAgent       = 82 // RFC 3046
	OptionClientArch  = 93 // RFC 4578
	OptionUUID        = 97 // RFC 4578
	OptionEnd         = 255
)

// Type is a message's DHCP type (option 53). Zero stands for BOOTP.
type Type uint8

// The types of RFC 2132 section 9.6.
const (
	BOOTP    Type = 0
	Discover Type = 1
	Offer    Type = 2
	Request  Type = 3 // DHCPREQUEST
	Decline  Type = 4
	Ack      Type = 5
	Nak      Type = 6
	Release  Type = 7
	Inform   Type = 8
	Other    Type = 9 // any other number: forwarded all the same

	// NumTypes is the number of values, for tables.
	NumTypes = 10
)

var typeNames = [NumTypes]string{
	"bootp", "discover", "offer", "request", "decline", "ack", "nak", "release", "inform", "other",
}

func (t Type) String() string {
	if t < NumTypes {
		return typeNames[t]
	}
	return typeNames[Other]
}

// next reads the option at offset i and returns its code, its value and the offset behind it. ok is false at the
// end: an END, the last byte, or an option that claims more bytes than there are.
func (m Message) next(i int) (code uint8, value []byte, after int, ok bool) {
	for i < len(m) && m[i] == OptionPad {
		i++
	}
	if i >= len(m) || m[i] == OptionEnd || i+1 >= len(m) {
		return 0, nil, i, false
	}
	after = i + 2 + int(m[i+1])
	if after > len(m) {
		return 0, nil, i, false
	}
	return m[i], m[i+2 : after], after, true
}

// Option finds the first option of a code in the options field; it shares the message's memory. The fields sname
// and file are never searched (RFC 3396 section 8: a relay agent does not interpret overloading).
func (m Message) Option(want uint8) (value []byte, found bool) {
	if !m.HasOptions() {
		return nil, false
	}
	for i := offFirst; ; {
		code, value, after, ok := m.next(i)
		if !ok {
			return nil, false
		}
		if code == want {
			return value, true
		}
		i = after
	}
}

// Options yields the options of the options field in their order, as [Message.Option] finds them.
func (m Message) Options(yield func(code uint8, value []byte) bool) {
	if !m.HasOptions() {
		return
	}
	for i := offFirst; ; {
		code, value, after, ok := m.next(i)
		if !ok || !yield(code, value) {
			return
		}
		i = after
	}
}

// Type is the DHCP message type.
func (m Message) Type() Type {
	value, found := m.Option(OptionType)
	switch {
	case !found || len(value) == 0:
		return BOOTP
	case value[0] == 0 || value[0] >= uint8(Other):
		return Other
	}
	return Type(value[0])
}

// minMaxSize is the least size that a client has to accept (section 4.1).
const minMaxSize = 576

// MaxSize is the longest message that the client accepts (option 57), or more than any where it does not say.
func (m Message) MaxSize() int {
	value, found := m.Option(OptionMaxSize)
	if !found || len(value) != 2 {
		return 1 << 16
	}
	return max(minMaxSize, int(value[0])<<8|int(value[1]))
}
