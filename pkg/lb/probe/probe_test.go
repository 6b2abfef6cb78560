package probe

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/tinkerbell/stack/pkg/frame"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// link answers each question with the stations of owners, one after the other.
type link struct {
	owners []frame.MAC
	said   []Heard // with the first probe
	asked  int
	probed int
	queue  []Heard
	fail   error
}

func (l *link) Ask() error {
	l.asked++
	for _, mac := range l.owners {
		l.queue = append(l.queue, Heard{Answer, mac})
	}
	return l.fail
}

func (l *link) Probe() error {
	l.probed++
	l.queue, l.said = append(l.queue, l.said...), nil
	return l.fail
}

func (l *link) Hear(ctx context.Context, deadline time.Time) (Heard, error) {
	if len(l.queue) == 0 {
		select {
		case <-ctx.Done():
			return Heard{}, ctx.Err()
		case <-time.After(time.Until(deadline)):
			return Heard{}, os.ErrDeadlineExceeded
		}
	}
	h := l.queue[0]
	l.queue = l.queue[1:]
	return h, nil
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

var a, b, c = frame.MAC{2, 1}, frame.MAC{2, 2}, frame.MAC{2, 3}

// Whoever has the address, says that it has, or is about to claim it with a lower Ethernet address, is a conflict.
func TestConflicts(t *testing.T) {
	down := errors.New("network is down")
	tests := map[string]struct {
		link   link
		want   *frame.MAC
		probed int
		fail   error
	}{
		"nobody":                           {link: link{}, probed: 3},
		"a station has it":                 {link: link{said: []Heard{{Claim, c}}}, want: &c, probed: 1},
		"a router answers for it by proxy": {link: link{owners: []frame.MAC{c}}, want: &c, probed: 1},
		"a station announces it meanwhile": {link: link{queue: []Heard{{Claim, c}}}, want: &c},
		"a lower station probes":           {link: link{said: []Heard{{Probing, a}}}, probed: 7},
		"a lower station has probed":       {link: link{queue: []Heard{{Probing, a}}}, probed: 6},
		"a lower station probes and claims": {
			link: link{said: []Heard{{Probing, a}, {Claim, a}}}, want: &a, probed: 1,
		},
		"a monitor probes all the time":    {link: link{said: slices.Repeat([]Heard{{Probing, a}}, 50)}, probed: 7},
		"a higher station probes":          {link: link{said: []Heard{{Probing, c}}}, probed: 3},
		"another card of this node has it": {link: link{said: []Heard{{Claim, frame.MAC{9}}}}, probed: 3},
		"the link is down":                 {link: link{fail: down}, probed: 1, fail: down},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				got, err := Conflict(t.Context(), &test.link, b, func(mac frame.MAC) bool { return mac == frame.MAC{9} })
				if diff := cmp.Diff(test.want, got); diff != "" || !errors.Is(err, test.fail) {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				if test.link.probed != test.probed {
					t.Errorf("probed %d times, want %d", test.link.probed, test.probed)
				}
				if took := time.Since(began); got == nil && err == nil && (took < 3*ClaimWait || took > 8*ClaimWait) {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// Before the lease of a node that is gone runs out, one of those that wait is the first, if nobody has the address.
func TestFirst(t *testing.T) {
	const wait = 50 * time.Millisecond
	for name, test := range map[string]struct {
		link  link
		first bool
		took  time.Duration
	}{
		"nobody":                           {link: link{}, first: true, took: wait + 3*ClaimWait},
		"the owner answers":                {link: link{said: []Heard{{Claim, a}}}, took: wait},
		"another question is answered":     {link: link{said: []Heard{{Answer, a}}}, took: wait},
		"another node has begun":           {link: link{queue: []Heard{{Probing, c}}}},
		"a lower one begins with this one": {link: link{said: []Heard{{Probing, a}}}, took: wait},
		"a higher one does":                {link: link{said: []Heard{{Probing, c}}}, first: true, took: wait + 3*ClaimWait},
		"own card":                         {link: link{said: []Heard{{Claim, frame.MAC{9}}}}, first: true, took: wait + 3*ClaimWait},
		"the link is down":                 {link: link{fail: errors.New("network is down")}, took: wait},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				probed, first := First(t.Context(), &test.link, b, func(mac frame.MAC) bool { return mac == frame.MAC{9} }, wait)
				if last := began.Add(wait + 2*ClaimWait); first && !probed.Equal(last) {
					t.Errorf("probed last after %v", probed.Sub(began))
				}
				if took := time.Since(began); first != test.first || took != test.took {
					t.Errorf("first %v after %v, want %v after %v", first, took, test.first, test.took)
				}
				if took := time.Since(began); took > wait+Lead {
					t.Errorf("%v is longer than it may take", took)
				}
			})
		})
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, first := First(ctx, &link{}, b, func(frame.MAC) bool { return false }, wait); first {
		t.Error("first though the lease was renewed")
	}
}

// A node that hears nobody asks each station twice, one after the other; one answer is enough.
func TestAnswered(t *testing.T) {
	for name, test := range map[string]struct {
		links []link
		want  bool
		asked int // all of them
	}{
		"no station":       {},
		"nobody":           {links: []link{{}, {}}, asked: 4},
		"the first":        {links: []link{{owners: []frame.MAC{a}}, {}}, want: true, asked: 1},
		"the last":         {links: []link{{}, {owners: []frame.MAC{a}}}, want: true, asked: 2},
		"own card":         {links: []link{{owners: []frame.MAC{b}}}, asked: 2},
		"what is said":     {links: []link{{queue: []Heard{{Claim, a}}}}, asked: 2},
		"the link is down": {links: []link{{fail: errors.New("network is down")}}, asked: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ports []Port
				for i := range test.links {
					ports = append(ports, &test.links[i])
				}
				turns, asked := 0, 0
				got := Answered(t.Context(), ports, func() { turns++ }, func(mac frame.MAC) bool { return mac == b })
				if got != test.want {
					t.Errorf("answered %v", got)
				}
				for _, l := range test.links {
					asked += l.asked
				}
				if asked != test.asked || turns != asked {
					t.Errorf("asked %d times, and had %d turns, want %d", asked, turns, test.asked)
				}
			})
		})
	}
}

func TestWatchSeesOwnersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		many := []frame.MAC{{1}, {2}, {3}, {4}, {5}, {6}}
		rounds := [][]frame.MAC{{a}, nil, {b}, {b, a}, many}
		l := &link{owners: rounds[0]}
		var seen [][]frame.MAC
		Watch(ctx, l, Watcher{Turn: func() {}, Interval: always(WatchInterval), Saw: func(r Round) {
			if r.Err != nil || time.Since(r.Asked) != WatchWait {
				t.Errorf("asked %v ago: %v", time.Since(r.Asked), r.Err)
			}
			if seen = append(seen, r.Owners); len(seen) == len(rounds) {
				stop()
				return
			}
			l.owners = rounds[len(seen)]
		}, Heard: func(Heard) { t.Error("heard what nobody said") }})
		rounds[3], rounds[4] = []frame.MAC{a, b}, many[:maxOwners]
		if diff := cmp.Diff(rounds, seen); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// What stations say without being asked is heard at once, between questions as well, and is no answer.
func TestWatchHearsBetweenQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer stop()
		l := &link{queue: []Heard{{Claim, a}, {Probing, b}}}
		var heard []Heard
		Watch(ctx, l, Watcher{Turn: func() {}, Interval: always(WatchInterval), Saw: func(r Round) {
			if r.Owners != nil || r.Err != nil {
				t.Errorf("owners %v, %v", r.Owners, r.Err)
			}
			l.queue = append(l.queue, Heard{Claim, c})
		}, Heard: func(h Heard) { heard = append(heard, h) }})
		want := []Heard{{Claim, a}, {Probing, b}, {Claim, c}, {Claim, c}, {Claim, c}, {Claim, c}}
		if diff := cmp.Diff(want, heard); diff != "" || l.asked != 4 {
			t.Errorf("asked %d times (-want +got):\n%s", l.asked, diff)
		}
	})
}

// An interval that becomes shorter, because of what was heard, holds for the question that is awaited already.
func TestWatchAsksSoonerWhereSomethingHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		began, interval := time.Now(), 50*time.Second
		var asked []time.Duration
		Watch(ctx, &link{}, Watcher{Turn: func() {}, Interval: func() time.Duration {
			if time.Since(began) > 10*time.Second {
				interval = WatchInterval
			}
			return interval
		}, Saw: func(r Round) {
			if asked = append(asked, r.Asked.Sub(began)); len(asked) == 2 {
				stop()
			}
		}, Heard: func(Heard) {}})
		if asked[1] < 10*time.Second || asked[1] > 10*time.Second+2*WatchInterval {
			t.Errorf("asked after %v", asked[1])
		}
	})
}
