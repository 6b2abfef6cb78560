package hardware

import (
	"encoding/hex"
	"maps"
	"math/rand/v2"
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

// slowly is the same distance by its definition.
func slowly(a, b string) int {
	at := func(d [][]int, i, j int) int { return d[i+1][j+1] }
	d := make([][]int, len(a)+1)
	for i := range d {
		d[i] = make([]int, len(b)+1)
		d[i][0] = i
	}
	for j := range d[0] {
		d[0][j] = j
	}
	for i := range len(a) {
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			d[i+1][j+1] = min(at(d, i-1, j)+1, at(d, i, j-1)+1, at(d, i-1, j-1)+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d[i+1][j+1] = min(at(d, i, j), at(d, i-2, j-2)+1)
			}
		}
	}
	return d[len(a)][len(b)]
}

func TestDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"52:54:00:5e:00:01", "52:54:00:5e:00:01", 0},
		{"52:54:00:5e:00:01", "52:54:00:5e:00:02", 1},
		{"52:54:00:5e:00:01", "52:54:00:e5:00:01", 1}, // swapped
		{"52:54:00:5e:00:01", "25:45:00:5e:00:01", 2},
		{"12:34:56:78:9a:bc", "23:45:67:89:ab:cd", 2}, // one left out, one put in
		{"00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", 12},
	} {
		if got := newPattern(mac(t, test.a)).distance(number(mac(t, test.b))); got != test.want {
			t.Errorf("%s and %s: %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

// The quick distance is the one by definition, for MACs that are alike and for any.
func TestDistanceIsTheDefinitions(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		var a, b [6]byte
		for i := range a {
			a[i] = byte(random.Uint32())
			b[i] = a[i]
			if random.IntN(3) == 0 {
				b[i] = b[i]<<4 | b[i]>>4
			}
			if random.IntN(4) == 0 {
				b[i] = byte(random.Uint32())
			}
		}
		want := slowly(hex.EncodeToString(a[:]), hex.EncodeToString(b[:]))
		if got := newPattern(a).distance(number(b)); got != want || newPattern(b).distance(number(a)) != want {
			t.Fatalf("%x and %x: %d, want %d", a, b, got, want)
		}
	}
}

func FuzzDistance(f *testing.F) {
	f.Add([]byte{0x52, 0x54, 0, 0x5e, 0, 1, 0x25, 0x45, 0, 0xe5, 0, 1})
	f.Add([]byte{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd})
	f.Fuzz(func(t *testing.T, both []byte) {
		if len(both) != 12 {
			return
		}
		a, b := [6]byte(both), [6]byte(both[6:])
		if got, want := newPattern(a).distance(number(b)), slowly(hex.EncodeToString(a[:]), hex.EncodeToString(b[:])); got != want {
			t.Errorf("%x and %x: %d, want %d", a, b, got, want)
		}
	})
}

// What is passed over or left early is no nearer than what is found.
func TestNearestIsTheLeast(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		macs := map[[6]byte][]claim{}
		for range 50 {
			macs[[6]byte{0x0c, 0xc4, 0x7a, byte(random.IntN(4)), byte(random.IntN(256)), byte(random.IntN(256))}] = nil
		}
		asked := [6]byte{0x0c, 0xc4, 0x7a, byte(random.IntN(4)), byte(random.IntN(256)), byte(random.IntN(256))}
		delete(macs, asked)
		least := far + 1
		for other := range macs {
			least = min(least, slowly(hex.EncodeToString(asked[:]), hex.EncodeToString(other[:])))
		}
		best, ok := nearest(asked, candidates(maps.All(macs), len(macs)))
		if d := slowly(hex.EncodeToString(asked[:]), hex.EncodeToString(best[:])); ok != (least <= far) || ok && d != least {
			t.Fatalf("%x: %x at %d, want %d", asked, best, d, least)
		}
	}
}
