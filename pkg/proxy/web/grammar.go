package web

import (
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/tinkerbell/stack/pkg/edge/reply"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
)

// net/http reads requests more generously than RFC 9112 writes them, and HTTP/2 has room for bytes that HTTP/1.1 does
// not. An endpoint gets the strict grammar, so each request is brought to it, or refused, before
// anything decides about it: limits, tokens, rewriting and the endpoint then see the same target.

// Why a request is refused with 400.
var (
	errTarget = errors.New("the request target is malformed")
	errForm   = errors.New("the request target has a form that is not served here")
	errHost   = errors.New("the host is malformed")
	errMethod = errors.New("the method is malformed")
	errField  = errors.New("a header field is malformed")
)

// normalized passes requests on in the strict grammar, and refuses the others. It stands behind an observer.
func normalized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen := w.(*response)
		switch r.Method {
		case "PRI": // the preface of HTTP/2, to a server that does not speak it here
			seen.Refused("HTTP/2 is not spoken here")
			http.Error(w, "HTTP/2 is not spoken here", http.StatusHTTPVersionNotSupported)
			return
		case http.MethodConnect:
			seen.Refused("no tunnels")
			http.Error(w, "no tunnels", http.StatusMethodNotAllowed)
			return
		}
		if err := normalize(r); err != nil {
			if r.ProtoMajor == 1 { // what follows on the connection may be meant otherwise, too
				w.Header().Set("Connection", "close")
			}
			reply.Refuse(w, r, http.StatusBadRequest, reply.InvalidArgument, err.Error())
			return
		}
		seen.recordCall() // not by the observer: what the grammar refuses is no call
		next.ServeHTTP(w, r)
	})
}

// normalize brings a request to the grammar of RFC 9112, section 3, or says what is wrong with it. An absolute target
// becomes a path, since its authority is the request's Host already. Bytes that RFC 3986 allows in no path or query are
// percent-encoded, which a path's reader undoes. What the client's Connection header names is removed.
func normalize(r *http.Request) error {
	if !httpguts.ValidHeaderFieldName(r.Method) { // a method is a token, as a name is
		return errMethod
	}
	if !http1.ValidHost(r.Host) {
		return errHost
	}
	if err := normalizeTarget(r); err != nil {
		return err
	}
	if r.ProtoMajor > 1 {
		if err := trimFields(r.Header); err != nil {
			return err
		}
	}
	for _, value := range r.Header["Upgrade"] { // names and versions of protocols (RFC 9110, section 7.8)
		if strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) {
			return errField
		}
	}
	dropListed(r.Header)
	return nil
}

// normalizeTarget does so for the target.
func normalizeTarget(r *http.Request) error {
	target, err := pathOf(r)
	if err != nil {
		return err
	}
	if target == "*" { // net/http's server answers it by itself
		r.RequestURI, r.URL.Path, r.URL.RawPath, r.URL.Scheme, r.URL.Host = target, target, "", "", ""
		return nil
	}
	strict, ok := encodeTarget(target)
	if !ok {
		return errTarget
	}
	if strict == r.RequestURI {
		return nil
	}
	r.RequestURI, r.URL.Scheme, r.URL.Host = strict, "", ""
	path, query, _ := strings.Cut(strict, "?")
	r.URL.RawQuery = query
	r.URL.Path = cmp.Or(r.URL.Path, "/")
	r.URL.RawPath = path // which means the same as Path
	return nil
}

// pathOf is a request's target without scheme and authority. Only the forms of RFC 9112, sections 3.2.1, 3.2.2 and
// 3.2.4, are taken, of the schemes http and https, and no userinfo (RFC 9110, section 4.2.4).
func pathOf(r *http.Request) (string, error) {
	raw := r.RequestURI
	switch {
	case strings.HasPrefix(raw, "/"):
		return raw, nil
	case raw == "*" && r.Method == http.MethodOptions:
		return raw, nil
	case r.ProtoMajor > 1, r.URL.Opaque != "", r.URL.User != nil, r.URL.Host == "",
		r.URL.Scheme != "http" && r.URL.Scheme != "https":
		return "", errForm
	}
	_, rest, found := strings.Cut(raw, "://")
	if !found {
		return "", errForm
	}
	at := strings.IndexAny(rest, "/?#")
	switch {
	case at < 0 && r.Method == http.MethodOptions:
		return "*", nil
	case at < 0:
		return "/", nil
	case rest[at] == '/':
		return rest[at:], nil
	default:
		return "/" + rest[at:], nil
	}
}

// encodeTarget percent-encodes the bytes that have no place in a path or query, and in a query a percent sign that
// begins nothing, which means the same to whoever reads such a query at all; ok is false where there is a space, a
// control character, or a fragment.
func encodeTarget(target string) (strict string, ok bool) {
	odd, query := 0, false
	begins := func(i int) bool { return http1.Encoded(target[i:]) }
	for i := range len(target) {
		switch c := target[i]; {
		case c == '?':
			query = true
		case c == '%' && !begins(i):
			if !query {
				return "", false
			}
			odd++
		case http1.TargetByte(c):
		case c <= ' ', c == 0x7f, c == '#':
			return "", false
		default:
			odd++
		}
	}
	if odd == 0 {
		return target, true
	}
	const hex = "0123456789ABCDEF"
	b := make([]byte, 0, len(target)+2*odd)
	for i := range len(target) {
		if c := target[i]; http1.TargetByte(c) && (c != '%' || begins(i)) {
			b = append(b, c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(b), true
}

// trimFields removes the space around the values of an HTTP/2 request: its grammar allows none (RFC 9113, section
// 8.2.1), and an endpoint of HTTP/1.1 would not see it.
func trimFields(h http.Header) error {
	for name, values := range h {
		if !httpguts.ValidHeaderFieldName(name) {
			return errField
		}
		for i, value := range values {
			if !httpguts.ValidHeaderFieldValue(value) {
				return errField
			}
			values[i] = textproto.TrimString(value)
		}
	}
	return nil
}

// dropListed removes the fields that the client says are for this hop only (RFC 9110, section 7.6.1). That comes first
// of all, so that it cannot touch what is set here later on: a token's claims, the client's address. The fields by
// which a trusted proxy tells of the client stay, whatever that client made it list. Of Connection itself an upgrade
// is left.
func dropListed(h http.Header) {
	lists := h["Connection"]
	if len(lists) == 0 {
		return
	}
	upgrade := false
	for _, list := range lists {
		for each := range strings.SplitSeq(list, ",") {
			name := textproto.CanonicalMIMEHeaderKey(textproto.TrimString(each))
			switch {
			case name == "Upgrade":
				upgrade = true
			case http1.MeaningOf(name) == http1.Pass, name == "Expect": // the others have rules of their own
				delete(h, name)
			}
		}
	}
	delete(h, "Connection")
	if upgrade {
		h["Connection"] = []string{"Upgrade"}
	}
}

// plainPath is the decoded path of a plain target, in which two hex digits follow each percent sign.
// It allocates for these only.
func plainPath(target []byte) []byte {
	raw, _, _ := bytes.Cut(target, []byte("?"))
	if bytes.IndexByte(raw, '%') >= 0 {
		if decoded, err := url.PathUnescape(string(raw)); err == nil {
			return []byte(decoded)
		}
	}
	return raw
}
