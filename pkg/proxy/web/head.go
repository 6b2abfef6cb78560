package web

import (
	"bytes"
	"net/http"
	"strings"
	"time"
)

// A plain request is a GET over HTTP/1.1 whose head says nothing that is not simply passed on, or such a POST with a
// length and its body right behind; a plain answer is one with a length. What is not surely plain is not: net/http
// judges it. So these two functions need not know what is wrong with a head, only what is beyond doubt, and the fuzz
// tests hold net/http to agree with what they accept.

// line is a header's, both parts slices of the head. The value has no space around it.
type line struct{ name, value []byte }

// plainRequest is a request's head, in slices of it.
type plainRequest struct {
	target, host []byte
	lines        []line // without Host and what is for this hop only
	close        bool   // the client wants the connection closed behind the answer
	post         bool
	body         []byte // of a POST
}

// method is the request's.
func (p *plainRequest) method() string {
	if p.post {
		return http.MethodPost
	}
	return http.MethodGet
}

// safe is whether the request may be sent again where it is not known what has become of it (RFC 9110, section 9.2.2).
func (p *plainRequest) safe() bool { return !p.post }

const (
	getStart    = "GET "
	postStart   = "POST "
	requestEnd  = " HTTP/1.1"
	answerStart = "HTTP/1.1 "
)

// parse reads a head that ends with an empty line, and what is behind it, and tells whether it is plain.
func (p *plainRequest) parse(head []byte) bool {
	*p = plainRequest{lines: p.lines[:0]}
	first, rest, ok := bytes.Cut(head, crlf)
	start := getStart
	if p.post = bytes.HasPrefix(first, []byte(postStart)); p.post {
		start = postStart
	}
	if !ok || !bytes.HasPrefix(first, []byte(start)) || !bytes.HasSuffix(first, []byte(requestEnd)) ||
		len(first) < len(start)+len(requestEnd) {
		return false
	}
	p.target = first[len(start) : len(first)-len(requestEnd)]
	length := int64(-1)
	if !plainTarget(p.target) {
		return false
	}
	for {
		l, after, end, ok := nextLine(rest)
		if !ok {
			return false
		}
		if end {
			p.body = after
			return p.host != nil && int64(len(after)) == max(length, 0) && (length >= 0) == p.post
		}
		rest = after
		switch handling(l.name) {
		case pass:
			p.lines = append(p.lines, l)
		case hop, forwardedLine:
		case hostLine:
			if p.host != nil || !plainHost(l.value) {
				return false
			}
			p.host = l.value
		case lengthLine:
			n, ok := number(l.value)
			if !ok || length >= 0 || !p.post || len(l.value) > 1 && l.value[0] == '0' {
				return false
			}
			length = n
			p.lines = append(p.lines, l)
		case connectionLine:
			switch {
			case equalFold(l.value, "close"):
				p.close = true
			case !equalFold(l.value, "keep-alive"):
				return false
			}
		default:
			return false
		}
	}
}

// append writes the request for the next hop: its lines as they came, then who calls, then that we passed it.
func (p *plainRequest) append(b []byte, forwarded forwardedHeaders) []byte {
	b = append(append(append(append(b, p.method()...), ' '), p.target...), requestEnd...)
	b = append(append(append(b, "\r\nHost: "...), p.host...), crlf...)
	b = forwarded.append(appendLines(b, p.lines))
	return append(append(appendHeader(b, "Via", viaHTTP11), crlf...), p.body...)
}

func appendLines(b []byte, lines []line) []byte {
	for _, l := range lines {
		b = append(append(b, l.name...), ": "...)
		b = append(append(b, l.value...), crlf...)
	}
	return b
}

// plainAnswer is an answer's head, in slices of it.
type plainAnswer struct {
	status []byte // the line behind the version: code and reason
	code   int
	length int64
	dated  bool
	close  bool
	lines  []line // without what is for this hop only
}

// parse reads a head that ends with an empty line, and tells whether it is plain.
func (p *plainAnswer) parse(head []byte) bool {
	*p = plainAnswer{length: -1, lines: p.lines[:0]}
	first, rest, ok := bytes.Cut(head, crlf)
	if !ok || !bytes.HasPrefix(first, []byte(answerStart)) || !all(first, &valueByte) {
		return false
	}
	p.status = first[len(answerStart):]
	if len(p.status) < 4 || p.status[3] != ' ' {
		return false
	}
	code, ok := number(p.status[:3])
	if p.code = int(code); !ok || p.code < 200 || p.code > 599 || p.code == 204 || p.code == 304 {
		return false
	}
	for {
		l, after, end, ok := nextLine(rest)
		if !ok {
			return false
		}
		if end {
			return p.length >= 0 && len(after) == 0
		}
		rest = after
		switch handling(l.name) {
		case hop:
		case pass, hostLine, viaLine, forwardedLine:
			p.dated = p.dated || equalFold(l.name, "date")
			p.lines = append(p.lines, l)
		case lengthLine:
			n, ok := number(l.value)
			if !ok || p.length >= 0 {
				return false
			}
			p.length = n
			p.lines = append(p.lines, l)
		case connectionLine:
			switch {
			case equalFold(l.value, "close"):
				p.close = true
			case !equalFold(l.value, "keep-alive"):
				return false
			}
		default:
			return false
		}
	}
}

// append writes the head for the client, perhaps with a note that the connection will be closed.
func (p *plainAnswer) append(b []byte, last bool) []byte {
	b = append(append(append(b, answerStart...), p.status...), crlf...)
	b = appendLines(b, p.lines)
	if !p.dated { // RFC 9110 section 6.6.1
		b = append(time.Now().UTC().AppendFormat(append(b, "Date: "...), http.TimeFormat), crlf...)
	}
	if last {
		b = append(b, "Connection: close\r\n"...)
	}
	return append(b, crlf...)
}

var crlf = []byte("\r\n")

// nextLine takes a header's line off a head; end is the empty one.
func nextLine(head []byte) (l line, rest []byte, end, ok bool) {
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
	return line{name, bytes.Trim(value, " \t")}, rest, false, true
}

// What a header's name means for a plain head.
type meaning uint8

const (
	pass          meaning = iota
	hop                   // for this hop only
	forwardedLine         // what the client says of its own address
	hostLine
	lengthLine
	connectionLine
	viaLine
	unplain
)

// handling compares without regard to case, and takes an underscore for a hyphen (see [alias]). The switch by length
// spares most comparisons.
func handling(name []byte) meaning {
	is := func(known string) bool { return alike(name, known) }
	switch len(name) {
	case 2:
		if is("te") {
			return unplain
		}
	case 3:
		if is("via") {
			return viaLine
		}
	case 4:
		if is("host") {
			return hostLine
		}
	case 6:
		if is("expect") {
			return unplain
		}
	case 7:
		if is("upgrade") || is("trailer") {
			return unplain
		}
	case 9:
		if is(headerForwarded) || is(headerRealIP) {
			return forwardedLine
		}
	case 10:
		switch {
		case is("connection"):
			return connectionLine
		case is("keep-alive"):
			return hop
		}
	case 14:
		switch {
		case equalFold(name, "content-length"):
			return lengthLine
		case is("content-length"):
			return unplain
		}
	case 15:
		if is(headerFor) {
			return forwardedLine
		}
	case 16:
		switch {
		case is("proxy-connection"):
			return unplain
		case is(headerHost):
			return forwardedLine
		}
	case 17:
		switch {
		case is("transfer-encoding"):
			return unplain
		case is(headerProto):
			return forwardedLine
		}
	case 18:
		if is("proxy-authenticate") {
			return unplain
		}
	case 19:
		if is("proxy-authorization") {
			return unplain
		}
	}
	return pass
}

// equalFold compares with a known word: letters, digits and hyphens.
func equalFold(b []byte, known string) bool {
	return len(b) == len(known) && strings.EqualFold(string(b), known) // the conversion does not allocate
}

// alike compares with a known word as equalFold does, and takes an underscore for a hyphen.
func alike(b []byte, known string) bool {
	if len(b) != len(known) {
		return false
	}
	for i, c := range b {
		if c == '_' {
			c = '-'
		}
		if c|0x20 != known[i]|0x20 { // of the bytes of a name, only a letter's two cases are the same then
			return false
		}
	}
	return true
}

// number reads digits, of which no length in bytes has more than 18.
func number(digits []byte) (n int64, ok bool) {
	if len(digits) == 0 || len(digits) > 18 {
		return 0, false
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// plainTarget is whether a target is a path of one way to read it, perhaps with a query.
func plainTarget(target []byte) bool {
	if len(target) == 0 || target[0] != '/' || bytes.HasPrefix(target, []byte("//")) || !all(target, &targetByte) {
		return false
	}
	for i, c := range target {
		if c == '%' && (i+2 >= len(target) || !hexDigit(target[i+1]) || !hexDigit(target[i+2])) {
			return false
		}
	}
	return true
}

// plainHost is whether a Host is one, of the bytes that names and addresses usually have. Only an address in brackets
// costs an allocation.
func plainHost(host []byte) bool {
	if len(host) == 0 || !all(host, &hostByte) {
		return false
	}
	if host[0] == '[' {
		return validHost(string(host))
	}
	name, port, _ := bytes.Cut(host, []byte(":"))
	return len(name) > 0 && !bytes.ContainsAny(name, "[]") && allDigits(port)
}

func allDigits[T string | []byte](text T) bool {
	for i := range len(text) {
		if c := text[i]; c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func hexDigit(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

// Sets of bytes.
type set [256]bool

var (
	letters    = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	nameByte   = of(letters + "-_")
	hostByte   = of(letters + "-_.:[]")
	targetByte = of(letters + "-._~!$&'()*+,;=:@/?%")
	valueByte  = func() (s set) {
		for c := ' '; c <= '~'; c++ {
			s[c] = true
		}
		s['\t'] = true
		return s
	}()
)

func of(bytes string) (s set) {
	for _, c := range []byte(bytes) {
		s[c] = true
	}
	return s
}

func all(b []byte, s *set) bool {
	for _, c := range b {
		if !s[c] {
			return false
		}
	}
	return true
}
