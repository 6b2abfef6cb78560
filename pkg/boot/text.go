package boot

import "unicode"

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
