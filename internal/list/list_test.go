package list

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type element struct {
	n    int
	link Link[*element]
}

func elements(l *List[*element]) (all []int) {
	for e := l.First(); e != nil; e = e.link.Next() {
		all = append(all, e.n)
	}
	return all
}

// TestAsSlice does at random the same to a list and to a slice.
func TestAsSlice(t *testing.T) {
	var l List[*element]
	var want []int
	all := make([]element, 8)
	for i := range all {
		all[i].n = i
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		e := &all[random.IntN(len(all))]
		switch at := slices.Index(want, e.n); {
		case random.IntN(8) == 0:
			taken := l.Take()
			if (taken == nil) != (len(want) == 0) || taken != nil && taken.n != want[0] {
				t.Fatalf("took %v of %v", taken, want)
			}
			want = slices.Delete(want, 0, min(1, len(want)))
		case at < 0:
			l.Add(&e.link, e)
			want = append(want, e.n)
		default:
			l.Remove(&e.link)
			want = slices.Delete(want, at, at+1)
		}
		if diff := cmp.Diff(want, elements(&l), cmp.Transformer("", func(s []int) []int { return append([]int{}, s...) })); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
		last := l.Last()
		if l.Len() != len(want) || (last == nil) != (len(want) == 0) || last != nil && last.n != want[len(want)-1] {
			t.Fatalf("%d elements, the last %v, of %v", l.Len(), last, want)
		}
	}
}

func TestAllocatesNothing(t *testing.T) {
	var l List[*element]
	a, b := &element{}, &element{}
	if n := testing.AllocsPerRun(100, func() {
		l.Add(&a.link, a)
		l.Add(&b.link, b)
		l.Remove(&a.link)
		l.Take()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
