package http1

import "strings"

// Meaning is what a header's name says of how to treat it on its way through a proxy.
type Meaning uint8

// Meanings.
const (
	// Pass goes to the next hop as it came.
	Pass Meaning = iota
	// Hop is for one connection only (RFC 9110, section 7.6.1).
	Hop
	// Forwarded says which client a request is from. A proxy writes these itself.
	Forwarded
	// Host, Length, Connection and Via have rules of their own.
	Host
	Length
	Connection
	Via
	// Expect asks for an answer before the body is sent.
	Expect
	// Special is for one connection only and changes how a message is read or answered; the engine does not serve it.
	Special
)

// The forwarding headers, as they are written.
const (
	ForwardedFor   = "X-Forwarded-For"
	ForwardedProto = "X-Forwarded-Proto"
	ForwardedHost  = "X-Forwarded-Host"
	RealIP         = "X-Real-Ip"
	ForwardedField = "Forwarded"
)

// MeaningOf is a header's meaning. It compares without regard to case, and any punctuation counts as a hyphen: CGI
// and its successors read X_Forwarded_For as X-Forwarded-For. The switch on the length saves most comparisons.
func MeaningOf[T string | []byte](name T) Meaning {
	is := func(known string) bool { return alike(name, known) }
	switch len(name) {
	case 2:
		if is("te") {
			return Special
		}
	case 3:
		if is("via") {
			return Via
		}
	case 4:
		if is("host") {
			return Host
		}
	case 6:
		if is("expect") {
			return Expect
		}
	case 7:
		if is("upgrade") || is("trailer") {
			return Special
		}
	case 9:
		if is(ForwardedField) || is(RealIP) {
			return Forwarded
		}
	case 10:
		switch {
		case is("connection"):
			return Connection
		case is("keep-alive"):
			return Hop
		}
	case 14:
		switch {
		case is("content-length") && name[7] == '-':
			return Length
		case is("content-length"):
			return Special
		}
	case 15:
		if is(ForwardedFor) {
			return Forwarded
		}
	case 16:
		switch {
		case is("proxy-connection"):
			return Special
		case is(ForwardedHost):
			return Forwarded
		}
	case 17:
		switch {
		case is("transfer-encoding"):
			return Special
		case is(ForwardedProto):
			return Forwarded
		}
	case 18:
		if is("proxy-authenticate") {
			return Special
		}
	case 19:
		if is("proxy-authorization") {
			return Special
		}
	}
	return Pass
}

// equalFold compares with a known word: letters, digits and hyphens.
func equalFold(b []byte, known string) bool {
	return len(b) == len(known) && strings.EqualFold(string(b), known) // the conversion does not allocate
}

// alike compares a header's name with a known one, without regard to case, and takes all punctuation for a hyphen.
func alike[T string | []byte](name T, known string) bool {
	if len(name) != len(known) {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if lower := c | 0x20; (lower < 'a' || lower > 'z') && (c < '0' || c > '9') {
			c = '-'
		}
		if c|0x20 != known[i]|0x20 { // of letters, digits and hyphens, only a letter's two cases are the same then
			return false
		}
	}
	return true
}
