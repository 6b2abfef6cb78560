package arp

import (
	"slices"
	"testing"
	"time"
)

// An answer is one to the probe that it answers, however late it comes, and after more probes than there are numbers.
func TestLateAnswersAreOfTheirProbe(t *testing.T) {
	a, b := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	s := &Sampler{names: map[[6]byte]string{a: "a", b: "b"}}
	for range 1<<16 + 3 {
		s.probes = append(s.probes, probe{at: time.Now()})
	}
	s.answered(2, b)
	s.answered(1, a) // after the answer to the next probe
	s.answered(1, a)
	last := len(s.probes) - 1
	if got := s.probes[last].owners; !slices.Equal(got, []string{"b"}) {
		t.Errorf("the last probe was answered by %v", got)
	}
	if got := s.probes[last-1].owners; !slices.Equal(got, []string{"a"}) {
		t.Errorf("the last but one was answered by %v", got)
	}
	if log := s.Since(time.Time{}); log.TwoOwners != 0 || log.Fault() != nil {
		t.Errorf("got %+v, %v", log, log.Fault())
	}
}

func TestSilence(t *testing.T) {
	begun := time.Unix(1, 0)
	at := func(seconds int, owners string) Span {
		return Span{At: begun.Add(time.Duration(seconds) * time.Second), Owners: owners}
	}
	for want, spans := range map[time.Duration][]Span{
		0:               {at(0, ""), at(9, "a"), at(12, "")},
		4 * time.Second: {at(0, ""), at(9, "a"), at(12, ""), at(14, "b"), at(20, ""), at(24, "a b"), at(30, "")},
	} {
		if got := (Log{Spans: spans}).Silence(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
