package http1

import (
	"bufio"
	"bytes"
	"errors"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

// answer is the head of an endpoint's answer. A plain one is read here, in slices of what has come; all others are read
// by net/http. A fuzz test checks that both read a plain head in the same way.
type answer struct {
	status []byte // the line behind the version: code and reason
	code   int
	length int64 // of the body; below 0 where the head does not tell
	// expected is the length that the head tells, even where there is no body; 0 where it tells none.
	expected int64
	chunked  bool
	dated    bool
	close    bool
	lines    []Line // without those for the endpoint's connection only
}

// AnswerHead bounds the head of an endpoint's answer, with the interim answers before it, in bytes.
const AnswerHead = 256 << 10

// Errors of an endpoint's answer.
var (
	ErrLongHead = errors.New("the head of the endpoint's answer is too long")
	ErrStatus   = errors.New("the endpoint's status code is none of HTTP's")
	ErrSwitched = errors.New("the endpoint switched to a protocol that it was not asked for")
)

// parse reads a head that ends with an empty line, and reports whether it is plain.
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
			a.length, a.expected = n, n
			a.lines = append(a.lines, l)
		case Connection:
			closes := false
			if !connection(l.Value, &closes) {
				return false
			}
			a.close = a.close || closes
		default:
			return false
		}
	}
}

// read reads a head of whatever form by net/http, and judges its code.
func (a *answer) read(head []byte, method string) error {
	*a = answer{length: -1, lines: a.lines[:0]}
	asked := &http.Request{Method: method}
	response, err := http.ReadResponse(bufio.NewReaderSize(bytes.NewReader(head), len(head)), asked)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	switch a.code = response.StatusCode; {
	case a.code < http.StatusContinue || a.code > 999:
		return ErrStatus
	case a.code == http.StatusSwitchingProtocols:
		return ErrSwitched
	}
	a.status = []byte(strconv.Itoa(a.code) + " " + http.StatusText(a.code))
	a.close, a.chunked = response.Close, slices.Contains(response.TransferEncoding, "chunked")
	a.length = response.ContentLength
	if response.Body == http.NoBody {
		a.length, a.chunked = 0, false
	}
	a.expected = max(a.length, 0)
	if a.code == http.StatusNotModified {
		a.expected, _ = strconv.ParseInt(response.Header.Get("Content-Length"), 10, 64)
	}
	a.setLines(response)
	return nil
}

// setLines takes over the lines that the client gets.
func (a *answer) setLines(response *http.Response) {
	header := http.Header{}
	SetAnswerHeader(header, response.Header)
	if a.interim() || a.code == http.StatusNoContent {
		delete(header, "Content-Length") // RFC 9110, section 8.6
	}
	if a.chunked && len(response.Trailer) > 0 {
		header["Trailer"] = slices.Sorted(maps.Keys(response.Trailer))
	}
	a.dated = header["Date"] != nil
	a.lines = linesOf(a.lines, header)
}

// linesOf appends a header's lines as net/http's server writes them.
func linesOf(lines []Line, header map[string][]string) []Line {
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			if httpguts.ValidHeaderFieldName(name) {
				lines = append(lines, Line{[]byte(name), []byte(oneLine.Replace(textproto.TrimString(value)))})
			}
		}
	}
	return lines
}

var oneLine = strings.NewReplacer("\n", " ", "\r", " ")

// location is where the answer leads to; empty if it does not say.
func (a *answer) location() string {
	for _, l := range a.lines {
		if l.Is("location") {
			return string(l.Value)
		}
	}
	return ""
}

// interim reports whether another answer follows this one (RFC 9110, section 15.2).
func (a *answer) interim() bool { return a.code < http.StatusOK }

// SetAnswerHeader takes over what is not for the endpoint's connection only.
func SetAnswerHeader(to, from http.Header) {
	var listed []string
	for _, list := range from["Connection"] {
		for each := range strings.SplitSeq(list, ",") {
			listed = append(listed, textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(each)))
		}
	}
	for name, values := range from {
		switch MeaningOf(name) {
		case Hop, Special, Connection:
		case Length:
			to[name] = values
		default:
			if !slices.Contains(listed, name) {
				to[name] = values
			}
		}
	}
}

// append writes the head for the client of a request.
func (a *answer) append(b []byte, r *Request) []byte {
	b = append(append(r.answerStart(b), a.status...), crlf...)
	b = appendLines(b, a.lines)
	if a.length < 0 && !r.Old {
		b = append(b, "Transfer-Encoding: chunked\r\n"...)
	}
	return r.appendEnd(b, a.dated)
}

// answerStart appends the version of an answer.
func (r *Request) answerStart(b []byte) []byte {
	if r.Old {
		return append(b, oldStart...)
	}
	return append(b, answerStart...)
}

// appendEnd appends a Date if the head has none, what becomes of the connection, and the empty line.
func (r *Request) appendEnd(b []byte, dated bool) []byte {
	if !dated { // RFC 9110, section 6.6.1
		b = time.Now().UTC().AppendFormat(append(b, "Date: "...), "Mon, 02 Jan 2006 15:04:05 GMT\r\n")
	}
	switch { // what an HTTP version does by default is not said
	case r.close && !r.Old:
		b = append(b, "Connection: close\r\n"...)
	case !r.close && r.Old:
		b = append(b, "Connection: keep-alive\r\n"...)
	}
	return append(b, crlf...)
}

// headEnd is the length of the head in what has arrived of an answer, 0 where its end has not. A line ends with LF,
// before which there may be a CR.
func headEnd(b []byte) int {
	for at := 0; ; {
		end := bytes.IndexByte(b[at:], '\n')
		if end < 0 {
			return 0
		}
		at += end + 1
		switch rest := b[at:]; {
		case len(rest) > 0 && rest[0] == '\n':
			return at + 1
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return at + 2
		}
	}
}

// takeHead reads the head of the answer in what has come, and returns what is behind it; done is false where the head
// is not whole. Interim answers before it end here: firmware expects none.
func (x *Exchange) takeHead(b []byte) (rest []byte, done bool, err error) {
	for {
		n := headEnd(b)
		if x.heads += n; x.heads > AnswerHead || n == 0 && x.heads+len(b) > AnswerHead {
			return nil, false, ErrLongHead
		}
		if n == 0 {
			return b, false, x.judgeStart(b)
		}
		if !x.answer.parse(b[:n]) {
			if err := x.answer.read(b[:n], x.Request.Method()); err != nil {
				return nil, false, err
			}
		}
		b = b[n:]
		if !x.answer.interim() {
			return b, true, nil
		}
	}
}

// judgeStart is the error of bytes with which no answer can begin, by their first line; nil where one can.
func (x *Exchange) judgeStart(b []byte) error {
	end := bytes.IndexByte(b, '\n')
	if end < 0 || plainStart(b[:end]) {
		return nil
	}
	return x.answer.read(append(slices.Clone(b[:end+1]), crlf...), x.Request.Method())
}

// plainStart reports whether a first line is one of a plain answer: HTTP/1.1, and a code from 100.
func plainStart(line []byte) bool {
	code, ok := bytes.CutPrefix(line, []byte(answerStart))
	return ok && len(code) >= 3 && allDigits(code[:3]) && code[0] != '0' && (len(code) == 3 || code[3] == ' ')
}
