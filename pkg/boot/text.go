package boot

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean returns text fit for a page, terminal, log or API: valid UTF-8 without control characters, and without the
// characters that change the direction or look of others.
func Clean(text []byte) string {
	if plain(text) {
		return string(text)
	}
	s := strings.ToValidUTF8(string(text), string(utf8.RuneError))
	return strings.Map(func(r rune) rune {
		if printable(r) {
			return r
		}
		return utf8.RuneError
	}, s)
}

// Cut shortens valid UTF-8 to most bytes, the mark at its end included.
func Cut(text string, most int, mark string) string {
	if len(text) <= most {
		return text
	}
	end := max(most-len(mark), 0)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}

// CleanCut is Clean of a text, cut to most bytes.
func CleanCut(text string, most int) string {
	return Cut(Clean([]byte(text[:min(len(text), 4*most)])), most, "")
}

// plain tells whether a text is nothing but printable ASCII, as almost all are.
func plain(text []byte) bool {
	for _, c := range text {
		if c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// printable tells whether a character may be shown: no control characters (terminal escapes, newlines), no characters
// that reverse or hide others (Unicode's category Cf), no separators but the space.
func printable(r rune) bool { return r == ' ' || unicode.IsGraphic(r) && !unicode.IsSpace(r) }
