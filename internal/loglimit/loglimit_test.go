package loglimit

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestEachMessageHasItsLines: a message that is logged too often hides no other, the next line tells how many were left
// out, and arguments are made for lines that are written only.
func TestEachMessageHasItsLines(t *testing.T) {
	for _, test := range []struct {
		lines   int
		period  time.Duration
		written int   // lines of each message in 130 seconds, at two a second
		left    []int // out before the first lines
	}{
		{1, time.Minute, 3, []int{0, 119, 119}},
		{2, 10 * time.Second, 26, []int{0, 0, 18, 0, 18}},
		{5, time.Second, 260, []int{0, 0}},
	} {
		t.Run(fmt.Sprintf("%d in %v", test.lines, test.period), func(t *testing.T) {
			var out bytes.Buffer
			limiter := New(slog.New(slog.NewTextHandler(&out, nil)), test.lines, test.period)
			made := 0
			args := func() []any {
				made++
				return []any{"n", made}
			}
			for at := range int64(260) {
				now := at * int64(time.Second/2)
				limiter.WarnAt(now, "first", args)
				limiter.LogAt(now, slog.LevelInfo, "second", nil)
				limiter.LogAt(now, slog.LevelDebug, "below the logger's level", args)
			}
			first, second := 0, 0
			for line := range strings.Lines(out.String()) {
				if strings.Contains(line, "level=INFO msg=second") {
					second++
				}
				if !strings.Contains(line, "level=WARN msg=first") {
					continue
				}
				if first < len(test.left) {
					said := fmt.Sprint("suppressed=", test.left[first])
					if got := strings.Contains(line, "suppressed="); got != (test.left[first] > 0) || got &&
						!strings.Contains(line, said+"\n") {
						t.Errorf("line %d has not %s: %s", first, said, line)
					}
				}
				first++
			}
			if first != test.written || second != test.written || made != test.written {
				t.Errorf("%d and %d lines, and arguments for %d, want %d", first, second, made, test.written)
			}
		})
	}
}

// TestClockSetBack: a clock that jumps back by an hour does not silence a message for an hour.
func TestClockSetBack(t *testing.T) {
	var out bytes.Buffer
	limiter := New(slog.New(slog.NewTextHandler(&out, nil)), 1, time.Second)
	limiter.WarnAt(int64(time.Hour), "message", nil)
	limiter.WarnAt(0, "message", nil)
	limiter.WarnAt(1, "message", nil)
	if got := strings.Count(out.String(), "msg=message"); got != 2 {
		t.Errorf("got %d lines, want 2:\n%s", got, &out)
	}
}
