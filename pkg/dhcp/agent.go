package dhcp

// Sub-options of the relay agent information option (RFC 3046 section 3.0 and the registry behind it).
const (
	SubCircuitID        = 1  // RFC 3046
	SubRemoteID         = 2  // RFC 3046
	SubLinkSelection    = 5  // RFC 3527
	SubSubscriberID     = 6  // RFC 3993
	SubVendor           = 9  // RFC 4243
	SubFlags            = 10 // RFC 5010
	SubServerIDOverride = 11 // RFC 5107
	SubRelayID          = 12 // RFC 6925

	// FlagUnicast in SubFlags tells that the relay agent received the request by unicast.
	FlagUnicast = 0x80

	// MaxAgent is the most bytes that the sub-options together may take.
	MaxAgent = 255
)

// AppendSub appends a sub-option to the value of an option 82 under construction. The caller keeps the whole
// within MaxAgent.
func AppendSub(b []byte, code byte, value []byte) []byte {
	return append(append(b, code, byte(len(value))), value...)
}

// Sub finds a sub-option in the value of an option 82.
func Sub(agent []byte, want byte) (value []byte, found bool) {
	for len(agent) >= 2 {
		n := 2 + int(agent[1])
		if n > len(agent) {
			return nil, false
		}
		if agent[0] == want {
			return agent[2:n], true
		}
		agent = agent[n:]
	}
	return nil, false
}

// HasAgent tells whether a relay agent information option is there already.
func (m Message) HasAgent() bool {
	_, found := m.Option(OptionAgent)
	return found
}

// end returns the offset behind the last option: of END, or of the end of the message where END is missing. ok is
// false where the last option claims more bytes than there are: what follows it cannot be known.
func (m Message) end() (at int, ok bool) {
	if !m.HasOptions() {
		return 0, false
	}
	for i := offFirst; ; {
		_, _, after, more := m.next(i)
		if !more {
			return after, after >= len(m) || m[after] == OptionEnd
		}
		i = after
	}
}

// AppendAgent adds an option 82 as the last option before END (RFC 3046 section 2.1), over the pads behind it. It
// returns the message as it was, and false, where that does not fit into limit bytes or the message's memory, or where
// the options are cut off.
func (m Message) AppendAgent(value []byte, limit int) (Message, bool) {
	at, ok := m.end()
	n := at + 2 + len(value) + 1
	if !ok || len(value) > MaxAgent || n > limit || n > cap(m) {
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

// StripAgents removes every option 82.
func (m Message) StripAgents() Message {
	for {
		at, n := m.lastAgent()
		if n == 0 {
			return m
		}
		m = m.cut(at, n)
	}
}

// StripAgent removes the option 82 that AppendAgent added behind one of another relay agent: the last one, or the end
// of the only one where the server joined them (RFC 3396). valueLen is the length of the value that was added.
func (m Message) StripAgent(valueLen int) Message {
	at, n := m.lastAgent()
	if n > 2+valueLen {
		m[at+1] -= byte(valueLen)
		return m.cut(at+n-valueLen, valueLen)
	}
	return m.cut(at, n)
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

// LastAgent is the value of the last option 82: that of the nearest relay agent.
func (m Message) LastAgent() (value []byte, found bool) {
	at, n := m.lastAgent()
	if n == 0 {
		return nil, false
	}
	return m[at+2 : at+n], true
}
