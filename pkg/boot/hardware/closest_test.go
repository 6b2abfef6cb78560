package hardware

import (
	"net"
	"testing"
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
func TestNearest(t *testing.T) {
	macs := map[[6]byte][]*entry{}
	for _, text := range []string{"52:54:00:5e:00:12", "52:54:00:5e:00:11", "52:54:00:5e:00:ff", "0c:c4:7a:00:00:01"} {
		macs[mac(t, text)] = nil
	}
	for range 20 {
		if best, ok := nearest(mac(t, "52:54:00:5e:00:10"), macs); !ok || best != mac(t, "52:54:00:5e:00:11") {
			t.Fatalf("%x, %v", best, ok)
		}
	}
	if best, ok := nearest(mac(t, "be:ef:be:ef:be:ef"), macs); ok {
		t.Errorf("%x is far", best)
	}
}
