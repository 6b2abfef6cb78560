package probe

import (
	"context"
	"errors"
	"os"
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
	asked  int
	queue  []frame.MAC
	fail   error
}

func (l *link) Ask() error {
	l.asked++
	l.queue = append(l.queue, l.owners...)
	return l.fail
}

func (l *link) Answer(deadline time.Time) (frame.MAC, error) {
	if len(l.queue) == 0 {
		time.Sleep(time.Until(deadline))
		return frame.MAC{}, os.ErrDeadlineExceeded
	}
	owner := l.queue[0]
	l.queue = l.queue[1:]
	return owner, nil
}

var a, b = frame.MAC{2, 1}, frame.MAC{2, 2}

func TestOwners(t *testing.T) {
	down := errors.New("network is down")
	many := []frame.MAC{{1}, {2}, {3}, {4}, {5}, {6}}
	tests := map[string]struct {
		link  link
		first bool
		want  []frame.MAC
		asked int
		fail  error
	}{
		"nobody":              {link: link{}, asked: 3},
		"one":                 {link: link{owners: []frame.MAC{a, a}}, want: []frame.MAC{a}, asked: 3},
		"two":                 {link: link{owners: []frame.MAC{b, a}}, want: []frame.MAC{a, b}, asked: 3},
		"the first is enough": {link: link{owners: []frame.MAC{b, a}}, first: true, want: []frame.MAC{b}, asked: 1},
		"a flood is bounded":  {link: link{owners: many}, want: many[:maxOwners], asked: 3},
		"the link is down":    {link: link{fail: down}, asked: 1, fail: down},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got, err := Owners(t.Context(), &test.link, ClaimProbes, ClaimWait, test.first)
				if diff := cmp.Diff(test.want, got); diff != "" || !errors.Is(err, test.fail) {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				if test.link.asked != test.asked {
					t.Errorf("asked %d times, want %d", test.link.asked, test.asked)
				}
			})
		})
	}
}

func TestWatchSeesOwnersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		rounds := [][]frame.MAC{{a}, nil, {b}, {a, b}}
		l := &link{owners: rounds[0]}
		var seen [][]frame.MAC
		Watch(ctx, l, WatchInterval, func(owners []frame.MAC, err error) {
			if err != nil {
				t.Error(err)
			}
			if seen = append(seen, owners); len(seen) == len(rounds) {
				stop()
				return
			}
			l.owners = rounds[len(seen)]
		})
		if diff := cmp.Diff(rounds, seen); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
