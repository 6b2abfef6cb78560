package hardware

import (
	"cmp"
	"math/bits"
	"slices"
)

// digits is how many hexadecimal digits a MAC has.
const digits = 12

// far is the distance from which two MACs have nothing to do with each other: a third of the digits. Cards of one
// maker share six.
const far = 4

// number is a MAC as a number, its first digit the highest.
func number(mac [6]byte) (n uint64) {
	for _, b := range mac {
		n = n<<8 | uint64(b)
	}
	return n
}

// candidate is a MAC to compare with, and the set of its digits.
type candidate struct {
	mac    [6]byte
	digits uint16
	number uint64
}

// candidates puts MACs in order, so that the first of those at one distance is always the same.
func candidates(macs func(func([6]byte, []claim) bool), room int) []candidate {
	all := make([]candidate, 0, room)
	for mac := range macs {
		c := candidate{mac: mac, number: number(mac)}
		for _, b := range mac {
			c.digits |= 1<<(b>>4) | 1<<(b&15)
		}
		all = append(all, c)
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.number, b.number) })
	return all
}

// nearest finds the MAC with the least distance that is not far, among those that are not the same.
func nearest(mac [6]byte, all []candidate) (best [6]byte, ok bool) {
	pattern, least, own := newPattern(mac), far+1, uint16(0)
	for _, b := range mac {
		own |= 1<<(b>>4) | 1<<(b&15)
	}
	for i := range all {
		// A change brings one digit at most that was not there.
		if max(bits.OnesCount16(all[i].digits&^own), bits.OnesCount16(own&^all[i].digits)) >= least {
			continue
		}
		if d := pattern.distance(all[i].number); d < least {
			least, best, ok = d, all[i].mac, true
			if d == 1 {
				break
			}
		}
	}
	return best, ok
}

// pattern is a MAC prepared for many comparisons: for each digit, the positions that have it, one bit each.
type pattern [16]uint16

func newPattern(mac [6]byte) *pattern {
	var p pattern
	for i, b := range mac {
		p[b>>4] |= 1 << (2 * i)
		p[b&15] |= 1 << (2*i + 1)
	}
	return &p
}

// distance is how many digits have to be changed, left out, put in or swapped with their neighbour to make one MAC of
// the other: the optimal string alignment distance, a column of its matrix in two words of bits (H. Hyyrö, "A
// bit-vector algorithm for computing Levenshtein and Damerau edit distances", 2003).
func (p *pattern) distance(mac uint64) int {
	const last = 1 << (digits - 1)
	var (
		positive     = uint16(1<<digits - 1) // vertical differences of +1
		negative     uint16                  // and of -1
		diagonal     uint16                  // where the diagonal is 0
		before, here uint16                  // positions of the digit before, and of this one
		score        = digits
	)
	for shift := 4 * (digits - 1); shift >= 0; shift -= 4 {
		before, here = here, p[mac>>shift&15]
		swapped := (^diagonal & here) << 1 & before
		diagonal = ((here & positive) + positive) ^ positive | here | negative | swapped
		up, down := negative|^(diagonal|positive), diagonal&positive
		switch {
		case up&last != 0:
			score++
		case down&last != 0:
			score--
		}
		up, down = up<<1|1, down<<1
		positive, negative = down|^(diagonal|up), up&diagonal
	}
	return score
}
