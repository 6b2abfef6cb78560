package web

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// strictRequest and strictResponse are messages of HTTP/1.1 that are read by the letter of RFC 9112, RFC 9110 and RFC 3986,
// without any of the leniency that they permit a recipient. What the proxy writes is held to it: what this reader takes, no
// other reads in another way. It shares no code with the proxy.

// errShort says that a message may be well-formed as far as it has come.
var errShort = errors.New("the message is not whole")

// strictField is a line of a header or a trailer.
type strictField struct{ Name, Value string }

// strictFields are such lines in their order.
type strictFields []strictField

// Values are those of a name, in any case.
func (f strictFields) Values(name string) (values []string) {
	for _, each := range f {
		if strings.EqualFold(each.Name, name) {
			values = append(values, each.Value)
		}
	}
	return values
}

// strictRequest is a request, with its body without chunks.
type strictRequest struct {
	Method, Target    string
	Fields, Trailers  strictFields
	Body              string
	Chunked, Declared bool // how its length is told; neither is none
}

// strictResponse is a response, as strictRequest.
type strictResponse struct {
	Status           int
	Reason           string
	Fields, Trailers strictFields
	Body             string
	Chunked          bool
	UntilClose       bool // the connection's end is the body's
}

const (
	tchar     = "!#$%&'*+.^_`|~0-9A-Za-z-"
	pchar     = `(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})`
	segments  = `(?:/` + pchar + `*)+`
	query     = `(?:\?(?:` + pchar + `|[/?])*)?`
	regName   = `(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})`
	authority = `(` + regName + `*|\[[0-9A-Fa-f:.]+\])(?::([0-9]*))?`
)

var (
	token        = regexp.MustCompile(`^[` + tchar + `]+$`)
	originForm   = regexp.MustCompile(`^` + segments + query + `$`)
	absoluteForm = regexp.MustCompile(`^https?://` + authority + `(?:` + segments + `)?` + query + `$`)
	hostForm     = regexp.MustCompile(`^` + authority + `$`)
	statusLine   = regexp.MustCompile(`^HTTP/1\.1 ([0-9]{3}) (.*)$`)
	chunkSize    = regexp.MustCompile(`^[0-9A-Fa-f]{1,15}$`)
	decimal      = regexp.MustCompile(`^[0-9]{1,18}$`)
)

// readStrictRequest takes a request off b.
func readStrictRequest(b []byte) (r strictRequest, rest []byte, err error) {
	line, b, err := cutLine(b)
	if err != nil {
		return r, nil, err
	}
	parts := strings.Split(line, " ")
	if len(parts) != 3 || parts[2] != "HTTP/1.1" {
		return r, nil, fmt.Errorf("request line %q", line)
	}
	r.Method, r.Target = parts[0], parts[1]
	if !token.MatchString(r.Method) {
		return r, nil, fmt.Errorf("method %q", r.Method)
	}
	switch {
	case r.Target == "*" && r.Method == http.MethodOptions:
	case matches(originForm, r.Target), matches(absoluteForm, r.Target):
	default:
		return r, nil, fmt.Errorf("target %q of %s", r.Target, r.Method)
	}
	if r.Fields, b, err = readFields(b); err != nil {
		return r, nil, err
	}
	hosts := r.Fields.Values("Host")
	if len(hosts) != 1 || !validHost(hosts[0]) {
		return r, nil, fmt.Errorf("hosts %q", hosts)
	}
	length, chunked, err := framing(r.Fields)
	if err != nil {
		return r, nil, err
	}
	r.Chunked, r.Declared = chunked, length >= 0
	r.Body, r.Trailers, rest, err = readBody(b, max(length, 0), chunked)
	return r, rest, err
}

// readStrictResponse takes the response to a request of some method off b. Ended says that nothing comes behind b.
func readStrictResponse(b []byte, method string, ended bool) (r strictResponse, rest []byte, err error) {
	line, b, err := cutLine(b)
	if err != nil {
		return r, nil, err
	}
	m := statusLine.FindStringSubmatch(line)
	if m == nil || !fieldText(m[2]) {
		return r, nil, fmt.Errorf("status line %q", line)
	}
	r.Status, _ = strconv.Atoi(m[1])
	r.Reason = m[2]
	if r.Status < 100 {
		return r, nil, fmt.Errorf("status %d", r.Status)
	}
	if r.Fields, b, err = readFields(b); err != nil {
		return r, nil, err
	}
	length, chunked, err := framing(r.Fields)
	if err != nil {
		return r, nil, err
	}
	if r.Status < 200 || r.Status == 204 {
		if chunked || length >= 0 {
			return r, nil, fmt.Errorf("a length in status %d", r.Status)
		}
		return r, b, nil
	}
	switch {
	case method == "HEAD", r.Status == 304:
		return r, b, nil
	case !chunked && length < 0:
		r.UntilClose = true
		if !ended {
			return r, nil, errShort
		}
		r.Body = string(b)
		return r, nil, nil
	}
	r.Chunked = chunked
	r.Body, r.Trailers, rest, err = readBody(b, max(length, 0), chunked)
	return r, rest, err
}

func matches(form *regexp.Regexp, s string) bool {
	return form.MatchString(s) && !strings.Contains(s, "\n")
}

// cutLine takes a line off b. It ends with CRLF, and has neither of the two within.
func cutLine(b []byte) (line string, rest []byte, err error) {
	at := bytes.IndexAny(b, "\r\n")
	switch {
	case at < 0, b[at] == '\r' && at+1 == len(b):
		return "", nil, errShort
	case b[at] == '\n', b[at+1] != '\n':
		return "", nil, fmt.Errorf("line end within %q", b[:min(at+2, len(b))])
	}
	return string(b[:at]), b[at+2:], nil
}

func readFields(b []byte) (fields strictFields, rest []byte, err error) {
	for {
		line, after, err := cutLine(b)
		if err != nil {
			return nil, nil, err
		}
		if b = after; line == "" {
			return fields, b, nil
		}
		name, value, found := strings.Cut(line, ":")
		if !found || !token.MatchString(name) {
			return nil, nil, fmt.Errorf("field line %q", line)
		}
		value = strings.Trim(value, " \t")
		if !fieldText(value) {
			return nil, nil, fmt.Errorf("value of %s: %q", name, value)
		}
		fields = append(fields, strictField{name, value})
	}
}

// fieldText is whether a text has no control character but tabs.
func fieldText(s string) bool {
	for _, c := range []byte(s) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// framing is how long a body is: -1 where nothing says so.
func framing(f strictFields) (length int, chunked bool, err error) {
	lengths, codings := f.Values("Content-Length"), f.Values("Transfer-Encoding")
	switch {
	case len(lengths)+len(codings) == 0:
		return -1, false, nil
	case len(lengths)+len(codings) > 1:
		return 0, false, fmt.Errorf("lengths %q, codings %q", lengths, codings)
	case len(codings) == 1 && strings.EqualFold(codings[0], "chunked"):
		return -1, true, nil
	case len(lengths) == 1 && decimal.MatchString(lengths[0]):
		n, err := strconv.Atoi(lengths[0])
		return n, false, err
	default:
		return 0, false, fmt.Errorf("lengths %q, codings %q", lengths, codings)
	}
}

func readBody(b []byte, length int, chunked bool) (body string, trailers strictFields, rest []byte, err error) {
	if !chunked {
		if len(b) < length {
			return "", nil, nil, errShort
		}
		return string(b[:length]), nil, b[length:], nil
	}
	var text strings.Builder
	for {
		line, after, err := cutLine(b)
		if err != nil {
			return "", nil, nil, err
		}
		if !chunkSize.MatchString(line) { // extensions are for a hop: a proxy writes none
			return "", nil, nil, fmt.Errorf("chunk size %q", line)
		}
		size, _ := strconv.ParseInt(line, 16, 64)
		if b = after; size == 0 {
			trailers, rest, err := readFields(b)
			return text.String(), trailers, rest, err
		}
		if int64(len(b)) < size+2 {
			return "", nil, nil, errShort
		}
		text.Write(b[:size])
		if string(b[size:size+2]) != "\r\n" {
			return "", nil, nil, fmt.Errorf("chunk of %d bytes does not end behind them", size)
		}
		b = b[size+2:]
	}
}

// validHost is by RFC 9110, section 7.2: empty where the target has no authority.
func validHost(host string) bool {
	m := hostForm.FindStringSubmatch(host)
	if m == nil || host != "" && m[1] == "" {
		return false
	}
	if literal, ok := strings.CutPrefix(m[1], "["); ok {
		addr, err := netip.ParseAddr(strings.TrimSuffix(literal, "]"))
		return err == nil && addr.Is6()
	}
	return true
}
