package setting

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Rate is a number of bits a second that a file writes as 1000000000, "1G", "2.5G" or "500M" (powers of 1000, as
// networks are measured).
type Rate int64

// Bits is the rate in bits a second.
func (r Rate) Bits() int64 { return int64(r) }

var rateUnits = []struct {
	suffix string
	bits   int64
}{{"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}}

// mostRate is far beyond any network, and leaves room to calculate.
const mostRate = 1e15

// UnmarshalJSON implements json.Unmarshaler.
func (r *Rate) UnmarshalJSON(text []byte) error {
	fault := fmt.Errorf("%s is no rate: write the bits a second as in 500M or 2.5G", text)
	s := string(text)
	if len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' {
		s = s[1 : len(s)-1]
	}
	unit := int64(1)
	for _, each := range rateUnits {
		if number, ok := strings.CutSuffix(s, each.suffix); ok {
			s, unit = number, each.bits
			break
		}
	}
	whole, fraction, dot := strings.Cut(s, ".")
	bits, err := strconv.ParseUint(whole, 10, 63)
	if err != nil || int64(bits) > mostRate/unit || dot && (fraction == "" || unit == 1) {
		return fault
	}
	n, part := int64(bits)*unit, unit
	for _, digit := range fraction {
		if part /= 10; digit < '0' || digit > '9' || part == 0 {
			return fault
		}
		n += int64(digit-'0') * part
	}
	if n > mostRate {
		return fault
	}
	*r = Rate(n)
	return nil
}

// MarshalJSON implements json.Marshaler.
func (r Rate) MarshalJSON() ([]byte, error) { return json.Marshal(r.String()) }

// String writes the rate in the largest unit that divides it.
func (r Rate) String() string {
	for _, unit := range rateUnits {
		if r != 0 && int64(r)%unit.bits == 0 {
			return strconv.FormatInt(int64(r)/unit.bits, 10) + unit.suffix
		}
	}
	return strconv.FormatInt(int64(r), 10)
}
