package dhcp

import (
	"bytes"
	"hash/crc32"
)

// Sub-options of the relay agent information option (RFC 3046 section 3.0 and the registry behind it).
const (
	SubCircuitID     = 1  // RFC 3046
	SubRemoteID      = 2  // RFC 3046
	SubLinkSelection = 5  // RFC 3527
	SubVendor        = 9  // RFC 4243
	SubRelayID       = 12 // RFC 6925
	SubSourcePort    = 19 // RFC 8357

	// MaxOption82 is the most bytes that the sub-options together may take.
	MaxOption82 = 255
)

// AppendSub appends a sub-option to the value of an option 82 under construction. The caller keeps the whole
// within MaxOption82.
func AppendSub(b []byte, code byte, value []byte) []byte {
	return append(append(b, code, byte(len(value))), value...)
}

// NextSub reads the sub-option at the begin of the value of an option 82. ok is false at the end, and where the
// sub-option claims more bytes than there are.
func NextSub(agent []byte) (code byte, value, rest []byte, ok bool) {
	if len(agent) < 2 || 2+int(agent[1]) > len(agent) {
		return 0, nil, agent, false
	}
	n := 2 + int(agent[1])
	return agent[0], agent[2:n], agent[n:], true
}

// Sub finds a sub-option in the value of an option 82.
func Sub(agent []byte, want byte) (value []byte, found bool) {
	for {
		code, value, rest, ok := NextSub(agent)
		if !ok || code == want {
			return value, ok
		}
		agent = rest
	}
}

// Subs is a set of the sub-options that a relay agent adds.
type Subs uint8

// subCodes are the codes of the sub-options in a set, by their bits.
var subCodes = [...]byte{SubCircuitID, SubRemoteID, SubLinkSelection, SubVendor, SubRelayID}

// Has reports whether a code is in the set.
func (s Subs) Has(code byte) bool { return s&SetOf(code) != 0 }

// SetOf is the set of one code; it is empty for one that no relay agent of this project adds.
func SetOf(code byte) Subs {
	for bit, each := range subCodes {
		if each == code {
			return 1 << bit
		}
	}
	return 0
}

// SumSubs returns the codes in the value of an option 82, and a checksum of its sub-options that does not depend on
// their order: some servers sort them.
func SumSubs(value []byte) (subs Subs, sum uint32) {
	for {
		code, _, rest, ok := NextSub(value)
		if !ok {
			return subs, sum
		}
		subs |= SetOf(code)
		sum ^= crc32.ChecksumIEEE(value[:len(value)-len(rest)])
		value = rest
	}
}

// HasOption82 tells whether a relay agent information option is there already.
func (m Message) HasOption82() bool {
	_, found := m.Option(OptionAgent)
	return found
}

// HidesOption82 reports whether a relay agent information option is in one of the fields that option 52 gives to
// options (RFC 2132 section 9.3): servers read it there as well.
func (m Message) HidesOption82() bool {
	overload, found := m.Option(OptionOverload)
	if !found || len(overload) == 0 {
		return false
	}
	const file, sname = 1, 2
	return overload[0]&file != 0 && m[offFile:offOptions].begins82() ||
		overload[0]&sname != 0 && m[offSname:offFile].begins82()
}

// begins82 reports whether options alone, as in an overloaded field, have that one.
func (m Message) begins82() bool {
	for i := 0; ; {
		code, _, after, ok := m.next(i)
		if !ok || code == OptionAgent {
			return ok
		}
		i = after
	}
}

// end returns the offset of END, or that behind the last option where END is missing. ok is false where the last option
// claims more bytes than there are: what follows it cannot be known.
func (m Message) end() (at int, ok bool) {
	if !m.HasOptions() {
		return 0, false
	}
	for i := offFirst; ; {
		_, _, after, more := m.next(i)
		switch {
		case more:
			i = after
		case after >= len(m):
			return i, true
		default:
			return after, m[after] == OptionEnd
		}
	}
}

// AppendOption82 adds an option 82 as the last option before END (RFC 3046 section 2.1), over the pads behind it. It
// returns the message as it was, and false, where that does not fit into limit bytes or the message's memory, or where
// the options are cut off.
func (m Message) AppendOption82(value []byte, limit int) (Message, bool) {
	at, ok := m.end()
	n := at + 2 + len(value) + 1
	if !ok || len(value) > MaxOption82 || n > limit || n > cap(m) {
		return m, false
	}
	if n > len(m) {
		m = m[:n]
	}
	m[at], m[at+1] = OptionAgent, byte(len(value))
	copy(m[at+2:], value)
	m[n-1] = OptionEnd
	return m, true
}

// StripOption82 removes every option 82.
func (m Message) StripOption82() Message {
	for {
		at, n := m.lastAgent()
		if n == 0 {
			return m
		}
		m = m.cut(at, n)
	}
}

// JoinOption82 adds sub-options behind those of another relay agent: in the first option 82, which takes in the others
// (RFC 3396 section 7), since there are servers that read one only. What is behind END may be overwritten. It returns
// the message as it was, and false, where that does not fit into one option, limit bytes or the message's memory, or
// where an option is cut off.
func (m Message) JoinOption82(value []byte, limit int) (Message, bool) {
	at, ok := m.end()
	var others [MaxOption82]byte // the values of all options 82 but the first
	// The message will be: what is before first, its value of length bytes, the others joined, value, what was behind.
	// removed is what the others took with their heads.
	first, length, joined, removed := 0, 0, 0, 0
	for i := offFirst; ok; {
		code, agent, after, more := m.next(i)
		if !more {
			break
		}
		if code == OptionAgent {
			for rest := agent; ok && len(rest) > 0; {
				_, _, rest, ok = NextSub(rest)
			}
			if first == 0 {
				first, length = after-len(agent), len(agent)
			} else {
				ok = ok && joined+len(agent) <= MaxOption82
				joined += copy(others[joined:], agent)
				removed += 2 + len(agent)
			}
		}
		i = after
	}
	n := at - removed + joined + len(value) + 1
	if !ok || first == 0 || length+joined+len(value) > MaxOption82 || n > limit || n > cap(m) {
		return m, false
	}
	for removed > 0 {
		from, n := m.lastAgent()
		m, removed, at = m.cut(from, n), removed-n, at-n
	}
	if n > len(m) {
		m = m[:n]
	}
	behind := first + length
	copy(m[behind+joined+len(value):n-1], m[behind:at])
	copy(m[behind:], others[:joined])
	copy(m[behind+joined:], value)
	m[first-1] = byte(length + joined + len(value))
	m[n-1] = OptionEnd
	return m, true
}

// StripSubs removes the sub-options of a relay agent that had joined them to those of another one: of each option 82
// the last one of each code. An option 82 that repeats the first one is removed as well, and so is one that is empty
// then.
func (m Message) StripSubs(subs Subs) Message { return m.stripSubs(subs, 0, true) }

// StripSubsOfSum is StripSubs for those options 82 in which the sub-options' checksum is sum ([SumSubs]).
func (m Message) StripSubsOfSum(subs Subs, sum uint32) Message { return m.stripSubs(subs, sum, false) }

func (m Message) stripSubs(subs Subs, sum uint32, anySum bool) Message {
	first := -1
	for i := offFirst; m.HasOptions(); {
		code, agent, after, ok := m.next(i)
		if !ok {
			break
		}
		i = after
		if code != OptionAgent {
			continue
		}
		if anySum || lastSubs(agent, subs) == sum {
			for _, code := range subCodes {
				if from, n := lastSub(agent, code); n > 0 && subs.Has(code) {
					at := after - len(agent)
					m = m.cut(at+from, n)
					m[at-1] -= byte(n)
					after -= n
					agent = m[at:after]
				}
			}
		}
		at := after - len(agent) - 2
		switch {
		case len(agent) == 0 || first >= 0 && bytes.Equal(agent, m[first+2:first+2+int(m[first+1])]):
			m, i = m.cut(at, 2+len(agent)), at
		case first < 0:
			first, i = at, after
		default:
			i = after
		}
	}
	return m
}

// lastSub is where the last sub-option of a code is, and its whole length; 0, 0 if there is none.
func lastSub(agent []byte, want byte) (at, n int) {
	for i := 0; ; {
		code, _, rest, ok := NextSub(agent[i:])
		if !ok {
			return at, n
		}
		next := len(agent) - len(rest)
		if code == want {
			at, n = i, next-i
		}
		i = next
	}
}

// lastSubs is the checksum of the last sub-option of each code in a set.
func lastSubs(agent []byte, subs Subs) (sum uint32) {
	for _, code := range subCodes {
		if at, n := lastSub(agent, code); n > 0 && subs.Has(code) {
			sum ^= crc32.ChecksumIEEE(agent[at : at+n])
		}
	}
	return sum
}

// lastAgent is where the last option 82 is, and its whole length; 0, 0 if there is none.
func (m Message) lastAgent() (at, n int) {
	if !m.HasOptions() {
		return 0, 0
	}
	for i := offFirst; ; {
		code, value, after, ok := m.next(i)
		if !ok {
			return at, n
		}
		if code == OptionAgent {
			n = 2 + len(value)
			at = after - n
		}
		i = after
	}
}

// cut removes n bytes and moves what follows.
func (m Message) cut(at, n int) Message {
	copy(m[at:], m[at+n:])
	clear(m[len(m)-n:])
	return m[:len(m)-n]
}

// Options82 yields the values of the options 82, in their order.
func (m Message) Options82(yield func(value []byte) bool) {
	for code, value := range m.Options {
		if code == OptionAgent && !yield(value) {
			return
		}
	}
}
