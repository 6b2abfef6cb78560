package paths

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// reading is how a path can be read.
type reading uint8

const (
	single    reading = iota // in one way
	merging                  // in two: empty parts between slashes count, or do not
	ambiguous                // in more
	endless                  // it is percent-encoded too often to tell
)

// decodings is how often a path may be percent-encoded. Once is usual; twice is an attack, or meant for a backend that
// decodes twice.
const decodings = 4

// read takes a path apart as it is written in a request: into its parts, percent-decoded to the end, without
// parameters. A slash at the end is an empty part, as are two in a row.
func read(escaped string) (parts []string, how reading) {
	p, how := decode(escaped)
	if strings.Contains(p, `\`) {
		p, how = strings.ReplaceAll(p, `\`, "/"), max(how, ambiguous)
	}
	rest, rooted := strings.CutPrefix(p, "/")
	if !rooted {
		how = max(how, ambiguous)
	}
	parts = strings.Split(rest, "/")
	for i, part := range parts {
		// Servlet containers cut a part off at the semicolon, programs in C at NUL. A path that is decoded twice may even
		// contain the query.
		if at := strings.IndexAny(part, ";?#\x00"); at >= 0 {
			part, how = part[:at], max(how, ambiguous)
			parts[i] = part
		}
		switch {
		case bare(part) != part: // dot segments, too
			how = max(how, ambiguous)
		case part == "" && i < len(parts)-1:
			how = max(how, merging)
		}
	}
	return parts, how
}

// bare is a part without the characters at its ends that some backends ignore: white space and control characters,
// which they strip, or before which a regular expression's $ matches (nginx, Python); and the dots behind a name
// (Windows).
func bare(part string) string {
	unseen := func(r rune) bool { return r == utf8.RuneError || unicode.IsSpace(r) || !unicode.IsGraphic(r) }
	part = strings.TrimLeftFunc(part, unseen)
	return strings.TrimRightFunc(part, func(r rune) bool { return r == '.' || unseen(r) })
}

// decode decodes until no percent-encoding is left.
func decode(escaped string) (p string, how reading) {
	if strings.IndexByte(escaped, '%') < 0 {
		return escaped, single
	}
	for n := range decodings {
		next, slashes := unescape(escaped)
		if slashes {
			how = max(how, ambiguous) // some backends read them as a part's text
		}
		if next == escaped {
			return next, how
		}
		if n > 0 {
			how = max(how, ambiguous)
		}
		escaped = next
	}
	if next, _ := unescape(escaped); next != escaped {
		return escaped, endless
	}
	return escaped, how
}

// unescape decodes once; slashes tells that there were encoded ones. A percent sign that encodes nothing stays.
func unescape(s string) (out string, slashes bool) {
	if strings.IndexByte(s, '%') < 0 {
		return s, false
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' && i+2 < len(s) {
			if decoded, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				c, slashes, i = byte(decoded), slashes || decoded == '/', i+2
			}
		}
		b = append(b, c)
	}
	return string(b), slashes
}
