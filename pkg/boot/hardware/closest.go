package hardware

import "bytes"

// far is how many digits may differ between two MACs that have to do with each other: a third. Cards of one maker share
// six.
const far = 4

// differing counts the hexadecimal digits in which two MACs differ.
func differing(a, b [6]byte) (n int) {
	for i := range a {
		x := a[i] ^ b[i]
		if x>>4 != 0 {
			n++
		}
		if x&15 != 0 {
			n++
		}
	}
	return n
}

// nearest finds the MAC that differs in the fewest digits, the lowest of several; false where all are far.
func nearest(mac [6]byte, macs map[[6]byte][]*entry) (best [6]byte, ok bool) {
	least := far + 1
	for other := range macs {
		if n := differing(mac, other); n < least || n == least && ok && bytes.Compare(other[:], best[:]) < 0 {
			least, best, ok = n, other, true
		}
	}
	return best, ok
}
