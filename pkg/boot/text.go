package boot

import "unicode"

// printable tells whether a character may be shown: no control characters (terminal escapes, newlines), no characters
// that reverse or hide others (Unicode's category Cf), no separators but the space.
func printable(r rune) bool { return r == ' ' || unicode.IsGraphic(r) && !unicode.IsSpace(r) }
