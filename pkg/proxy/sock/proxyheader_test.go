package sock

import "testing"

// FuzzReadHeader: whatever a peer sends, what is read has both addresses or none.
func FuzzReadHeader(f *testing.F) {
	const v4 = "\xc0\x00\x02\x07\xc0\x00\x02\x01\x04\xd2\x00\x50"
	for _, seed := range []string{
		"PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\r\n", "PROXY UNKNOWN\r\n",
		signature2 + "\x21\x11\x00\x17" + v4 + "\x03\x00\x04\x81\x19\x91\xeb\x04\x00\x01x",
		signature2 + "\x21\x11\x00\x10" + v4 + "\x04\x00\x02x", signature2 + "\x20\x51\x00\x04abcd",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n := headerLength(b)
		if n > len(b) {
			t.Fatalf("a header of %d bytes in %d", n, len(b))
		}
		source, target, err := readHeader(b[:n])
		if source.IsValid() != target.IsValid() || err != nil && source.IsValid() {
			t.Errorf("%q: %v, %v, %v", b, source, target, err)
		}
	})
}
