package endpoint

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// How often endpoints are tried, which of them are blamed, and that none but the one that took it stays in use.
func TestTry(t *testing.T) {
	failure := errors.New("failure")
	for name, test := range map[string]struct {
		outcomes []Result // of the attempts, in order
		most     int
		tried    int
		blamed   uint64
		taken    bool
	}{
		"taken":                 {[]Result{Taken}, 3, 1, 0, true},
		"taken by the second":   {[]Result{Unseen, Taken}, 3, 2, 1, true},
		"all refuse":            {[]Result{Unseen, Unseen, Unseen}, 9, 3, 3, false},
		"most refuse":           {[]Result{Unseen, Unseen, Unseen}, 2, 2, 2, false},
		"fails on the way":      {[]Result{Failed, Taken}, 3, 1, 1, false},
		"spoiled":               {[]Result{NotItsFault, Taken}, 3, 1, 0, false},
		"refused, then spoiled": {[]Result{Unseen, NotItsFault, Taken}, 3, 2, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPool(Config{Route: "r", Sources: []Source{Fixed(
				netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("192.0.2.2:1"), netip.MustParseAddrPort("192.0.2.3:1"),
			)}})
			client := netip.MustParseAddr("198.51.100.1")
			seen := map[netip.AddrPort]bool{}
			e, err := p.Try(client, test.most, func(e *Endpoint, tried int) (Result, error) {
				if tried != len(seen) || seen[e.Addr] {
					t.Errorf("attempt %d is with %s, after %v", tried, e.Addr, seen)
				}
				seen[e.Addr] = true
				if outcome := test.outcomes[tried]; outcome != Taken {
					return outcome, failure
				}
				return Taken, nil
			})
			if (e != nil) != test.taken || (err == nil) != test.taken || err != nil && !errors.Is(err, failure) {
				t.Errorf("got %v, %v", e, err)
			}
			active, blamed := int64(0), uint64(0)
			for _, s := range p.Status() {
				active, blamed = active+s.Active, blamed+s.Failures
			}
			want := int64(0)
			if test.taken {
				want = 1
			}
			if diff := cmp.Diff([]any{test.tried, test.blamed, want}, []any{len(seen), blamed, active}); diff != "" {
				t.Errorf("tried, blamed, in use (-want +got):\n%s", diff)
			}
		})
	}
	_, err := NewPool(Config{Route: "r"}).Try(netip.MustParseAddr("198.51.100.1"), 3, func(*Endpoint, int) (Result, error) {
		t.Error("an endpoint of none is tried")
		return Taken, nil
	})
	if !errors.Is(err, ErrNone) {
		t.Errorf("got %v", err)
	}
}
