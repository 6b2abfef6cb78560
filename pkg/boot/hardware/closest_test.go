package hardware

import (
	"net"
	"slices"
	"testing"

	"golang.org/x/time/rate"
)

func mac(t testing.TB, text string) (m [6]byte) {
	t.Helper()
	parsed, err := net.ParseMAC(text)
	if err != nil || copy(m[:], parsed) != 6 {
		t.Fatalf("%q is no MAC: %v", text, err)
	}
	return m
}

func TestDiffering(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"52:54:00:5e:00:01", "52:54:00:5e:00:01", 0},
		{"52:54:00:5e:00:01", "52:54:00:5e:00:02", 1},
		{"52:54:00:5e:00:01", "52:54:00:e5:00:01", 2}, // swapped
		{"00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", 12},
	} {
		if got := differing(mac(t, test.a), mac(t, test.b)); got != test.want {
			t.Errorf("%s and %s: %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

// The nearest MAC is the same one each time, and none that is far.
func TestClosest(t *testing.T) {
	var macs []string
	for _, text := range []string{"52:54:00:5e:00:12", "52:54:00:5e:00:11", "52:54:00:5e:00:ff", "0c:c4:7a:00:00:01"} {
		m := mac(t, text)
		macs = append(macs, string(m[:]))
	}
	for change := range uint64(20) {
		c := closest{searches: rate.NewLimiter(10, 10)}
		if best := c.of(mac(t, "52:54:00:5e:00:10"), change, slices.Values(macs)); macText(best) != "52:54:00:5e:00:11" {
			t.Fatalf("%x", best)
		}
		if best := c.of(mac(t, "be:ef:be:ef:be:ef"), change, slices.Values(macs)); best != "" {
			t.Errorf("%x is far", best)
		}
		slices.Reverse(macs)
	}
}
