package artifacts

import (
	"net/http"
	"strings"
)

// maxRanges is how many ranges of a file one request may ask for. Each costs a seek, a read and a header of its own,
// some 20 microseconds, however few bytes it has. Firmware and curl ask for one, zsync for a few.
const maxRanges = 32

// boundRanges is a request without its Range where that asks for more than maxRanges: the file is then served whole, as
// RFC 9110, section 14.2, allows. That is a right answer to any client, while 416 would tell it that the file is too
// short; it goes by sendfile(2), and whoever wants the server to work can have it without a Range as well. Ranges that
// overlap so much that they are longer than the file are answered so by net/http already.
func boundRanges(r *http.Request) *http.Request {
	values := r.Header["Range"]
	if len(values) == 0 || strings.Count(values[0], ",") < maxRanges { // net/http reads the first one only
		return r
	}
	whole := *r
	whole.Header = r.Header.Clone()
	whole.Header.Del("Range")
	return &whole
}
