package http1

import (
	"bytes"
	"time"
)

// A message that is not certainly plain is handed off. So these parsers accept a subset of HTTP/1.1 and need not
// recognize errors. Fuzz tests check that net/http reads each accepted message in the same way.

// Line is a header line; both parts are slices of the head. Value has no space around it.
type Line struct{ Name, Value []byte }

// Is compares the name with a known one, in lower case.
func (l Line) Is(known string) bool { return equalFold(l.Name, known) }

// Request is a plain request, in slices of what was read.
type Request struct {
	Target, Host []byte
	Lines        []Line // without Host and those for this hop only
	Body         []byte // of a POST
	Post         bool   // else it is a GET
	close        bool   // the client wants the connection closed behind the answer
}

// Method is the request's.
func (r *Request) Method() string {
	if r.Post {
		return "POST"
	}
	return "GET"
}

// safe reports whether the request may be sent again after a connection broke (RFC 9110, section 9.2.2).
func (r *Request) safe() bool { return !r.Post }

const (
	getStart    = "GET "
	postStart   = "POST "
	requestEnd  = " HTTP/1.1"
	answerStart = "HTTP/1.1 "
)

// parse reads a head that ends with an empty line, and what is behind it, and tells whether it is plain.
func (r *Request) parse(head []byte) bool {
	*r = Request{Lines: r.Lines[:0]}
	first, rest, ok := bytes.Cut(head, crlf)
	start := getStart
	if r.Post = bytes.HasPrefix(first, []byte(postStart)); r.Post {
		start = postStart
	}
	if !ok || !bytes.HasPrefix(first, []byte(start)) || !bytes.HasSuffix(first, []byte(requestEnd)) ||
		len(first) < len(start)+len(requestEnd) {
		return false
	}
	r.Target = first[len(start) : len(first)-len(requestEnd)]
	length := int64(-1)
	if !plainTarget(r.Target) {
		return false
	}
	for {
		l, after, end, ok := nextLine(rest)
		if !ok {
			return false
		}
		if end {
			r.Body = after
			return r.Host != nil && int64(len(after)) == max(length, 0) && (length >= 0) == r.Post
		}
		rest = after
		switch MeaningOf(l.Name) {
		case Pass:
			r.Lines = append(r.Lines, l)
		case Hop, Forwarded:
		case Host:
			if r.Host != nil || !plainHost(l.Value) {
				return false
			}
			r.Host = l.Value
		case Length:
			n, ok := number(l.Value)
			if !ok || length >= 0 || !r.Post || len(l.Value) > 1 && l.Value[0] == '0' {
				return false
			}
			length = n
			r.Lines = append(r.Lines, l)
		case Connection:
			if !connection(l.Value, &r.close) {
				return false
			}
		default:
			return false
		}
	}
}

// connection reads the value of a Connection header; false where it is more than close or keep-alive.
func connection(value []byte, closes *bool) bool {
	if equalFold(value, "close") {
		*closes = true
		return true
	}
	return equalFold(value, "keep-alive")
}

// append writes the request for the next hop: its lines as they came, then those of the proxy, then the body.
func (r *Request) append(b, added []byte) []byte {
	b = append(append(append(append(b, r.Method()...), ' '), r.Target...), requestEnd...)
	b = append(append(append(b, "\r\nHost: "...), r.Host...), crlf...)
	b = append(appendLines(b, r.Lines), added...)
	return append(append(b, crlf...), r.Body...)
}

func appendLines(b []byte, lines []Line) []byte {
	for _, l := range lines {
		b = append(append(b, l.Name...), ": "...)
		b = append(append(b, l.Value...), crlf...)
	}
	return b
}

// answer is the head of a plain answer, in slices of it.
type answer struct {
	status []byte // the line behind the version: code and reason
	code   int
	length int64
	dated  bool
	close  bool
	lines  []Line // without those for this hop only
}

// parse reads a head that ends with an empty line, and tells whether it is plain.
func (a *answer) parse(head []byte) bool {
	*a = answer{length: -1, lines: a.lines[:0]}
	first, rest, ok := bytes.Cut(head, crlf)
	if !ok || !bytes.HasPrefix(first, []byte(answerStart)) || !all(first, &valueByte) {
		return false
	}
	a.status = first[len(answerStart):]
	if len(a.status) < 4 || a.status[3] != ' ' {
		return false
	}
	code, ok := number(a.status[:3])
	if a.code = int(code); !ok || a.code < 200 || a.code > 599 || a.code == 204 || a.code == 304 {
		return false
	}
	for {
		l, after, end, ok := nextLine(rest)
		if !ok {
			return false
		}
		if end {
			return a.length >= 0 && len(after) == 0
		}
		rest = after
		switch MeaningOf(l.Name) {
		case Hop:
		case Pass, Host, Via, Forwarded:
			a.dated = a.dated || l.Is("date")
			a.lines = append(a.lines, l)
		case Length:
			n, ok := number(l.Value)
			if !ok || a.length >= 0 {
				return false
			}
			a.length = n
			a.lines = append(a.lines, l)
		case Connection:
			if !connection(l.Value, &a.close) {
				return false
			}
		default:
			return false
		}
	}
}

// append writes the head for the client, perhaps with a note that the connection will be closed.
func (a *answer) append(b []byte, last bool) []byte {
	b = append(append(append(b, answerStart...), a.status...), crlf...)
	return appendEnd(appendLines(b, a.lines), a.dated, last)
}

// appendEnd appends a Date if the head has none, Connection: close if this is the last answer, and the empty line.
func appendEnd(b []byte, dated, last bool) []byte {
	if !dated { // RFC 9110, section 6.6.1
		b = time.Now().UTC().AppendFormat(append(b, "Date: "...), "Mon, 02 Jan 2006 15:04:05 GMT\r\n")
	}
	if last {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, crlf...)
}

// headEnd is the length of the head in what has come of an answer, 0 where its end has not come.
func headEnd(b []byte) int {
	if at := bytes.Index(b, []byte("\r\n\r\n")); at >= 0 {
		return at + 4
	}
	return 0
}

// neverPlain reports whether no continuation of b can be a plain head.
func neverPlain(b []byte) bool {
	if n := min(len(b), len(answerStart)); string(b[:n]) != answerStart[:n] {
		return true
	}
	for at := range b {
		if b[at] == '\n' && b[at-1] != '\r' { // it does not start with one
			return true
		}
	}
	return false
}

var crlf = []byte("\r\n")

// nextLine takes a header's line off a head; end is the empty one.
func nextLine(head []byte) (l Line, rest []byte, end, ok bool) {
	at := bytes.IndexByte(head, '\n')
	if at < 1 || head[at-1] != '\r' {
		return l, nil, false, false
	}
	text, rest := head[:at-1], head[at+1:]
	if len(text) == 0 {
		return l, rest, true, true
	}
	name, value, found := bytes.Cut(text, []byte(":"))
	if !found || len(name) == 0 || !all(name, &nameByte) || !all(value, &valueByte) {
		return l, nil, false, false
	}
	return Line{name, bytes.Trim(value, " \t")}, rest, false, true
}
