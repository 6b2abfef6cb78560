package sock

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConns(t *testing.T) {
	var s Conns[string]
	a, b, unknown := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.Addr{}
	for _, step := range []struct {
		name      string
		got, want any
	}{
		{"one", s.Add("one", unknown, 2, 1, nil), nil},
		{"two is b's", s.Add("two", b, 2, 1, nil), nil},
		{"three, beyond the bound", s.Add("three", a, 2, 1, nil), ErrFull},
		{"three, beyond b's bound", s.Add("three", b, 3, 1, func() { t.Error("three has begun") }), ErrClientFull},
		{"three, without bounds", s.Add("three", unknown, 0, 0, nil), nil},
		{"one is a's", s.Count("one", a, 1), true},
		{"one is counted once", s.Count("one", a, 1), true},
		{"three, beyond a's bound", s.Count("three", a, 1), false},
		{"three is a's, without bound", s.Count("three", a, 0), true},
		{"one ends", s.Remove("one"), true},
		{"one has ended", s.Remove("one"), false},
		{"one is not counted any more", s.Count("one", a, 1), true},
		{"four", s.Add("four", unknown, 3, 0, nil), nil},
		{"four, beyond a's bound", s.Count("four", a, 1), false},
		{"three ends", s.Remove("three"), true},
		{"four is a's", s.Count("four", a, 1), true},
	} {
		if step.got != step.want {
			t.Errorf("%s: got %v, want %v", step.name, step.got, step.want)
		}
	}
	if diff := cmp.Diff([]string{"four", "two"}, slices.Sorted(s.All())); diff != "" || s.Len() != 2 {
		t.Errorf("%d connections (-want +got):\n%s", s.Len(), diff)
	}
	for range s.All() { // and no further
		break
	}
	begun := false
	if err := s.Add("five", a, 0, 0, func() { begun = true }); err != nil || !begun {
		t.Errorf("five has begun: %t, %v", begun, err)
	}
	for _, c := range []string{"two", "four", "five"} {
		s.Remove(c)
	}
	if len(s.clients) != 0 {
		t.Errorf("clients without connections: %v", s.clients)
	}
}
