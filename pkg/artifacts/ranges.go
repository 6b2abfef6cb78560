package artifacts

import (
	"net/http"
	"strings"
)

// maxRanges is how many ranges of a file one request may ask for. Each costs a seek, a read and a header of its own,
// some 20 microseconds, however few bytes it has. Firmware and curl ask for one, zsync for a few.
const maxRanges = 32

// readRanges is a request as net/http reads its Range (RFC 9110, section 14), which it should:
//   - A unit other than bytes is none of ours, and bytes is the same in any case: nginx has it so as well.
//   - The last no bytes cannot be had; net/http would answer with a range that ends before it begins.
//   - With more than maxRanges the file is served whole, as section 14.2 allows. That is a right answer to any client,
//     while 416 would tell it that the file is too short; it goes by sendfile(2), and whoever wants the server to work
//     can have it without a Range as well. Ranges that overlap so much that they are longer than the file are answered
//     so by net/http already.
func readRanges(r *http.Request) *http.Request {
	values := r.Header["Range"]
	if len(values) == 0 {
		return r
	}
	ranges := rangesOf(values[0]) // net/http reads the first one only
	if ranges == values[0] {
		return r
	}
	other := *r
	other.Header = r.Header.Clone()
	if ranges == "" {
		other.Header.Del("Range")
	} else {
		other.Header.Set("Range", ranges)
	}
	return &other
}

// beyond is a range that no file has.
const beyond = "9223372036854775807-"

func rangesOf(header string) string {
	unit, set, _ := strings.Cut(header, "=")
	if !strings.EqualFold(unit, "bytes") || strings.Count(set, ",") >= maxRanges {
		return ""
	}
	ranges := strings.Split(set, ",")
	for i, each := range ranges {
		each = strings.TrimSpace(each)
		if len(each) > 1 && each[0] == '-' && strings.Trim(each[1:], "0") == "" {
			ranges[i] = beyond
		}
	}
	return "bytes=" + strings.Join(ranges, ",")
}
