package boot

import "testing"

func TestCut(t *testing.T) {
	for _, c := range []struct {
		text, mark string
		most       int
		want       string
	}{
		{"abc", "…", 3, "abc"},
		{"abcdef", "", 3, "abc"},
		{"abcdef", "…", 5, "ab…"},
		{"aäb", "", 2, "a"},
		{"aäbcdef", "…", 5, "a…"},
		{"äöü", "…", 2, "…"},
	} {
		if got := Cut(c.text, c.most, c.mark); got != c.want {
			t.Errorf("%q to %d bytes with %q: got %q, want %q", c.text, c.most, c.mark, got, c.want)
		}
	}
}
