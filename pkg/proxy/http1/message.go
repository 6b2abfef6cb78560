package http1

import "bytes"

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
	Old          bool   // it is one of HTTP/1.0, which has no chunks
	close        bool   // the connection is closed behind the answer
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
	oldEnd      = " HTTP/1.0"
	answerStart = "HTTP/1.1 "
	oldStart    = "HTTP/1.0 "
)

// parse reads a head that ends with an empty line, and what is behind it, and tells whether it is plain.
func (r *Request) parse(head []byte) bool {
	*r = Request{Lines: r.Lines[:0]}
	first, rest, ok := bytes.Cut(head, crlf)
	start := getStart
	if r.Post = bytes.HasPrefix(first, []byte(postStart)); r.Post {
		start = postStart
	}
	r.Old = bytes.HasSuffix(first, []byte(oldEnd))
	if !ok || !bytes.HasPrefix(first, []byte(start)) || !r.Old && !bytes.HasSuffix(first, []byte(requestEnd)) ||
		len(first) < len(start)+len(requestEnd) {
		return false
	}
	r.close = r.Old // unless it says otherwise
	r.Target = first[len(start) : len(first)-len(requestEnd)]
	length, listed := int64(-1), false
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
			if listed || !connection(l.Value, &r.close) {
				return false
			}
			listed = true
		default:
			return false
		}
	}
}

// connection reads the value of a Connection header; false where it is more than close or keep-alive.
func connection(value []byte, closes *bool) bool {
	*closes = equalFold(value, "close")
	return *closes || equalFold(value, "keep-alive")
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
