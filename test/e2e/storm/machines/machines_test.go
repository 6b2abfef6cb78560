package machines

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A step goes on as long as bytes come that no attempt had before, and says how far it got when none do.
func TestInsistGivesUpOnlyWhatDoesNotMove(t *testing.T) {
	const patience = time.Minute
	newMachine := func() *machine {
		return &machine{fleet: &fleet{Plan: &Plan{Patience: patience}}, step: StepKernel, retries: map[string]int{}}
	}
	t.Run("slow", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m, begin := newMachine(), time.Now()
			err := m.insist(t.Context(), func(m *machine, ctx context.Context) error {
				for n := range 100 {
					time.Sleep(idleAttempt - time.Second)
					m.progress.at(int64(n + 1))
				}
				return ctx.Err()
			})
			if err != nil || time.Since(begin) < 20*patience || len(m.retries) != 0 {
				t.Errorf("after %s: %v, %v", time.Since(begin), err, m.retries)
			}
		})
	})
	t.Run("cut off again and again at the same place", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine()
			err := m.insist(t.Context(), func(m *machine, ctx context.Context) error {
				time.Sleep(time.Second)
				m.progress.at(4096)
				return errors.New("connection reset")
			})
			for _, part := range []string{"nothing has moved for 1m0s", "4096 bytes", "connection reset"} {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v does not say %q", err, part)
				}
			}
			if m.retries[StepKernel] < 10 {
				t.Errorf("tried again %d times", m.retries[StepKernel])
			}
		})
	})
	t.Run("silent, then well", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m, attempts := newMachine(), 0
			err := m.insist(t.Context(), func(_ *machine, ctx context.Context) error {
				if attempts++; attempts == 1 {
					<-ctx.Done()
					return context.Cause(ctx)
				}
				return nil
			})
			if err != nil || m.retries[StepKernel] != 1 {
				t.Errorf("%v, retries %v", err, m.retries)
			}
		})
	})
	t.Run("a wrong answer is counted and not taken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			m, attempts := newMachine(), 0
			err := m.insist(t.Context(), func(*machine, context.Context) error {
				if attempts++; attempts == 1 {
					return own("hostname", "m00002", "m00001")
				}
				return nil
			})
			if err != nil || len(m.wrong) != 1 || !strings.Contains(m.wrong[0], `hostname is "m00002"`) {
				t.Errorf("%v, wrong %q", err, m.wrong)
			}
		})
	})
}

func TestSame(t *testing.T) {
	want := []byte("0123456789")
	for name, test := range map[string]struct {
		pieces []string
		torn   bool
	}{
		"whole":       {[]string{"0123", "456789"}, false},
		"too short":   {[]string{"0123", "45678"}, true},
		"too long":    {[]string{"0123456789", "0"}, true},
		"another's":   {[]string{"0123", "x56789"}, true},
		"out of turn": {[]string{"456789", "0123"}, true},
	} {
		file := same{what: "file", want: want}
		var err error
		for _, piece := range test.pieces {
			err = errors.Join(err, file.take([]byte(piece)))
		}
		err = errors.Join(err, file.end())
		if errors.Is(err, errWrong) != test.torn || (err != nil) != test.torn {
			t.Errorf("%s: %v", name, err)
		}
	}
}
