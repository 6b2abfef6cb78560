package arp

import (
	"slices"
	"testing"
	"time"
)

// An answer is one to the probe that it answers, however late it comes, and after more probes than there are numbers.
func TestLateAnswersAreOfTheirProbe(t *testing.T) {
	s := &target{}
	for range 1<<16 + 3 {
		s.probes = append(s.probes, probe{at: time.Now()})
	}
	s.answered(2, "b")
	s.answered(1, "a") // after the answer to the next probe
	s.answered(1, "a")
	last := len(s.probes) - 1
	if got := s.probes[last].owners; !slices.Equal(got, []string{"b"}) {
		t.Errorf("the last probe was answered by %v", got)
	}
	if got := s.probes[last-1].owners; !slices.Equal(got, []string{"a"}) {
		t.Errorf("the last but one was answered by %v", got)
	}
	if log := s.since(time.Time{}); log.TwoOwners != 0 || log.Fault() != nil {
		t.Errorf("got %+v, %v", log, log.Fault())
	}
}

// An announcement is stale if its station answers neither the probe before it nor one within a second.
func TestStaleAnnouncements(t *testing.T) {
	begun := time.Unix(1000, 0)
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	s := &target{}
	for ms := 0; ms < 5000; ms += 100 {
		owner := []string{"a"}
		if ms >= 2000 {
			owner = []string{"b"}
		}
		s.probes = append(s.probes, probe{at(ms), owner})
	}
	for name, test := range map[string]struct {
		claim
		want bool
	}{
		"of the owner":              {claim{at(450), "a"}, false},
		"a moment before it has it": {claim{at(1950), "b"}, false},
		"long before":               {claim{at(450), "b"}, true},
		"it went a moment ago":      {claim{at(2010), "a"}, true},
		"it goes at this moment":    {claim{at(1995), "a"}, false},
		"a stranger":                {claim{at(4000), "c"}, true},
		"at the end, of the owner":  {claim{at(4990), "b"}, false},
		"at the end, of a former":   {claim{at(4990), "a"}, true},
	} {
		if got := s.stale(test.claim); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
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
