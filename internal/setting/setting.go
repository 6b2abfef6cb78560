// Package setting has the values that settings files write differently from Go: durations and sizes; and
// finds the name that a misspelled one may mean.
package setting

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Duration is a time.Duration that a file writes as "90s" or "1h30m".
type Duration time.Duration

// D is the duration as the standard library has it.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String is as [time.Duration.String].
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON implements json.Marshaler.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON implements json.Unmarshaler. A number without a unit is refused: nobody knows which it is.
func (d *Duration) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return fmt.Errorf("%s is no duration: write it with its unit, as in 30s", text)
	}
	parsed, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is no duration: write it as in 30s or 1h30m", s)
	}
	*d = Duration(parsed)
	return nil
}

// Size is a number of bytes that a file writes as 1048576, "64Mi" or "10Gi" (powers of 1024), or "500M" (of 1000).
type Size int64

var units = []struct {
	suffix string
	bytes  int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12},
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Size) UnmarshalJSON(text []byte) error {
	s := strings.Trim(string(text), `"`)
	factor := int64(1)
	for _, unit := range units {
		if number, ok := strings.CutSuffix(s, unit.suffix); ok {
			s, factor = number, unit.bytes
			break
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > (1<<63-1)/factor {
		return fmt.Errorf("%s is no size: write it as in 512Mi or 10Gi", text)
	}
	*b = Size(n * factor)
	return nil
}

// MarshalJSON implements json.Marshaler.
func (b Size) MarshalJSON() ([]byte, error) { return json.Marshal(b.String()) }

// String writes the size in the largest unit that divides it.
func (b Size) String() string {
	for i := 3; i >= 0; i-- {
		if unit := units[i]; b != 0 && int64(b)%unit.bytes == 0 {
			return strconv.FormatInt(int64(b)/unit.bytes, 10) + unit.suffix
		}
	}
	return strconv.FormatInt(int64(b), 10)
}
