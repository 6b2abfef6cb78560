package syslog

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

// Limits of RFC 5424 section 6, in bytes.
const (
	maxApp    = 48
	maxProcID = 128
	maxMsgID  = 32
)

// defaultPriority is user.notice, which RFC 3164 section 4.3.3 gives to a message without one.
const defaultPriority = 13

// nilValue stands for an absent field.
var nilValue = []byte("-")

// Message is a syslog message of any kind, as views of its datagram. A nil field was absent.
type Message struct {
	Priority  uint8
	Timestamp []byte // as RFC 3339, or nil
	App       []byte
	ProcID    []byte
	MsgID     []byte
	Data      []byte // structured data, or nil
	Text      []byte
}

// Parse reads RFC 5424, RFC 3164, and the forms of firmware that resemble it. It never fails: the rest of a message is
// text. It leaves out the host name in the message.
func Parse(b []byte) Message {
	m := Message{Priority: defaultPriority}
	rest, ok := m.priority(b)
	if !ok {
		m.Text = b
		return m
	}
	if len(rest) >= 2 && rest[0] == '1' && rest[1] == ' ' {
		if !m.modern(rest[2:]) {
			m = Message{Priority: m.Priority, Text: rest}
		}
		return m
	}
	m.legacy(rest)
	return m
}

// priority reads "<0>" to "<191>".
func (m *Message) priority(b []byte) (rest []byte, ok bool) {
	if len(b) == 0 || b[0] != '<' {
		return b, false
	}
	n := 0
	for i := 1; i < len(b) && i < 5; i++ {
		c := b[i]
		switch {
		case c == '>' && i > 1 && n <= 191:
			m.Priority = uint8(n)
			return b[i+1:], true
		case c < '0' || c > '9':
			return b, false
		}
		n = n*10 + int(c-'0')
	}
	return b, false
}

// modern reads RFC 5424 after the version: five fields, structured data, text.
func (m *Message) modern(b []byte) bool {
	var fields [5][]byte
	for i := range fields {
		field, rest, ok := cut(b)
		if !ok || !printable(field) {
			return false
		}
		fields[i], b = field, rest
	}
	length, ok := structured(b)
	if !ok {
		return false
	}
	m.Timestamp, m.App, m.ProcID, m.MsgID = present(fields[0]), present(fields[2]), present(fields[3]), present(fields[4])
	if !validTime(m.Timestamp) {
		m.Timestamp = nil
	}
	m.Data = present(b[:length])
	if b = b[length:]; len(b) > 0 {
		b = b[1:] // the space
	}
	m.Text = b
	return true
}

// cut takes the field before the next space.
func cut(b []byte) (field, rest []byte, ok bool) {
	for i, c := range b {
		if c == ' ' {
			return b[:i], b[i+1:], true
		}
	}
	return b, nil, false
}

// printable tells whether b is a field of RFC 5424: PRINTUSASCII, at least one.
func printable(b []byte) bool {
	for _, c := range b {
		if c < 33 || c > 126 {
			return false
		}
	}
	return len(b) > 0
}

func present(b []byte) []byte {
	if len(b) == 1 && b[0] == '-' {
		return nil
	}
	return b
}

// maxTime is the longest form of RFC 5424 section 6.2.3, and the longest that Smee reads.
const maxTime = len("2006-01-02T15:04:05.999999Z07:00")

// validTime reports whether a strict receiver will read the time.
func validTime(b []byte) bool {
	if b == nil {
		return true
	}
	const form = "2006-01-02T15:04:05"
	if len(b) <= len(form) || len(b) > maxTime || b[len("2006-01-02T15")] != ':' {
		return false
	}
	// time.Parse also accepts a comma, and zones of a day and more.
	if b[len(form)] == ',' || b[len(b)-1] != 'Z' && string(b[max(0, len(b)-5):len(b)-3]) > "23" {
		return false
	}
	_, err := time.Parse(time.RFC3339Nano, string(b))
	return err == nil
}

// structured finds the end of STRUCTURED-DATA, which the end of the message or a space follows.
func structured(b []byte) (length int, ok bool) {
	i := 0
	if len(b) > 0 && b[0] == '-' {
		i = 1
	} else {
		for i < len(b) && b[i] == '[' {
			end := element(b[i:])
			if end < 0 {
				return 0, false
			}
			i += end
		}
	}
	return i, i > 0 && (i == len(b) || b[i] == ' ')
}

// element is the length of one "[...]", or -1.
func element(b []byte) int {
	quoted := false
	for i := 1; i < len(b); i++ {
		switch {
		case quoted && b[i] == '\\':
			i++
		case b[i] == '"':
			quoted = !quoted
		case b[i] == ']' && !quoted:
			return i + 1
		}
	}
	return -1
}

// legacy reads RFC 3164, of which any part may be missing: "Mmm dd hh:mm:ss host tag[pid]: text". Such a time has
// neither year nor zone, so the receiver's own time is better; a time in the form of RFC 3339 is kept.
func (m *Message) legacy(b []byte) {
	if n := len(time.Stamp); len(b) > n && b[n] == ' ' && stamp(b[:n]) {
		b = b[n+1:]
	} else if field, rest, ok := cut(b); ok && len(field) > 10 && field[10] == 'T' && validTime(field) {
		m.Timestamp, b = field, rest
	}
	if m.tag(b) {
		return
	}
	// A word before the tag is the host's name.
	if host, rest, ok := cut(b); ok && printable(host) && m.tag(rest) {
		return
	}
	m.Text = b
}

// stamp tells whether b looks like "Jan _2 15:04:05".
func stamp(b []byte) bool {
	const form = "Aaa _0 00:00:00"
	for i, c := range b {
		digit := c >= '0' && c <= '9'
		switch form[i] {
		case 'A', 'a':
			if c|0x20 < 'a' || c|0x20 > 'z' {
				return false
			}
		case '0':
			if !digit {
				return false
			}
		case '_':
			if !digit && c != ' ' {
				return false
			}
		default:
			if c != form[i] {
				return false
			}
		}
	}
	return len(b) == len(form)
}

// tag reads "tag: text" or "tag[pid]: text".
func (m *Message) tag(b []byte) bool {
	i := 0
	for i < len(b) && tagByte(b[i]) {
		i++
	}
	if i == 0 || i > maxApp || i == len(b) {
		return false
	}
	app, rest := b[:i], b[i:]
	var pid []byte
	if rest[0] == '[' {
		end := 1
		for end < len(rest) && rest[end] != ']' {
			end++
		}
		if end == len(rest) || end == 1 || end > maxProcID || !printable(rest[1:end]) {
			return false
		}
		pid, rest = rest[1:end], rest[end+1:]
	}
	if len(rest) == 0 || rest[0] != ':' {
		return false
	}
	if rest = rest[1:]; len(rest) > 0 {
		if rest[0] != ' ' {
			return false
		}
		rest = rest[1:]
	}
	m.App, m.ProcID, m.Text = app, pid, rest
	return true
}

func tagByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
		c == '-' || c == '_' || c == '/' || c == '.' || c == '(' || c == ')'
}

// Append writes the message in RFC 5424 with the client as HOSTNAME, in the form that Smee reads: its structured
// data is always "-"; the message's structured data moves in front of the text. The result fits into a datagram.
func (m Message) Append(b []byte, client netip.Addr) []byte {
	start := len(b)
	b = append(b, '<')
	b = strconv.AppendUint(b, uint64(m.Priority), 10)
	b = append(b, ">1 "...)
	b = append(b, orNil(m.Timestamp, maxTime)...)
	b = append(b, ' ')
	b = client.WithZone("").AppendTo(b)
	for _, field := range []struct {
		value []byte
		limit int
	}{{m.App, maxApp}, {m.ProcID, maxProcID}, {m.MsgID, maxMsgID}} {
		b = append(b, ' ')
		b = append(b, orNil(field.value, field.limit)...)
	}
	b = append(b, " - "...)
	if len(m.Data) > 0 {
		b = append(b, m.Data...)
		b = append(b, ' ')
	}
	if smeeLoses(m.Text, len(b)-start) {
		b = append(b, ' ')
	}
	b = append(b, m.Text...)
	return b[:min(len(b), start+datagram.MaxSize)]
}

// smeeBuffer is the longest message that Smee reads, in bytes.
const smeeBuffer = 2048

// smeeLoses reports whether Smee would drop the text: it reads a text that begins with a brace as JSON, and drops it if
// that fails. A space in front of the text prevents it.
func smeeLoses(text []byte, header int) bool {
	return len(text) > 0 && text[0] == '{' && (header+len(text) > smeeBuffer || !json.Valid(text))
}

func orNil(b []byte, limit int) []byte {
	if len(b) == 0 {
		return nilValue
	}
	return b[:min(len(b), limit)]
}
