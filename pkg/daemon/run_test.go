package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// job is a task that drains for a while, or fails.
type job struct {
	name  string
	drain time.Duration
	fail  error
	quit  bool
	ready error
	ended time.Time
}

func (j *job) Run(ctx context.Context) error {
	if j.fail != nil || j.quit {
		return j.fail
	}
	<-ctx.Done()
	time.Sleep(j.drain)
	j.ended = time.Now()
	return nil
}
func (j *job) Ready() error   { return j.ready }
func (j *job) String() string { return j.name }

type probed struct {
	job
	ready func() error
	taken error
}

func (p *probed) Open(context.Context) error { return p.taken }

func (p *probed) Probe(ready func() error) { p.ready = ready }

func TestRunDrainsAndKeepsAdminToTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		slow, admin := &job{name: "slow", drain: 3 * time.Second}, &probed{job: job{name: "admin"}}
		ended := make(chan error)
		go func() {
			ended <- run(ctx, Options{
				Admin: admin, Tasks: []Task{slow, &job{name: "quick"}}, DrainTime: func() time.Duration { return time.Second },
			})
		}()
		synctest.Wait()
		if err := admin.ready(); err != nil {
			t.Errorf("got not ready: %v", err)
		}
		slow.ready = errors.New("no listener")
		if err := admin.ready(); err == nil || err.Error() != "slow: no listener" {
			t.Errorf("got %v, want the task's reason", err)
		}
		cancel()
		synctest.Wait()
		if err := admin.ready(); !errors.Is(err, errDraining) {
			t.Errorf("got %v, want draining", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("got %v, want an orderly end", err)
		}
		if admin.ended.Before(slow.ended) {
			t.Errorf("admin ended at %v, before the last task at %v", admin.ended, slow.ended)
		}
	})
}

// A program that was told to end does its job through the grace, and is ready: kube-proxy sends to a pod that terminates,
// where there is no other, only while it is.
func TestReadyThroughTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		slow, admin := &job{name: "slow", drain: time.Second}, &probed{job: job{name: "admin"}}
		left, ended := 0, make(chan error)
		go func() {
			ended <- run(ctx, Options{
				Admin: admin, Tasks: []Task{slow}, Grace: 5 * time.Second, Leave: func() { left++ },
				DrainTime: func() time.Duration { return time.Second },
			})
		}()
		synctest.Wait()
		if left != 0 {
			t.Error("leaves before it was told to")
		}
		cancel()
		time.Sleep(5*time.Second - time.Millisecond)
		synctest.Wait()
		if err := admin.ready(); err != nil || left != 1 {
			t.Errorf("at the end of the grace: not ready: %v; left %d times", err, left)
		}
		slow.ready = errors.New("no endpoint")
		if err := admin.ready(); err == nil || err.Error() != "slow: no endpoint" {
			t.Errorf("got %v, want the task's reason", err)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if err := admin.ready(); !errors.Is(err, errDraining) {
			t.Errorf("got %v, want draining", err)
		}
		begin := time.Now()
		if err := <-ended; err != nil || time.Since(begin) != time.Second {
			t.Errorf("got %v after %v, want an orderly end after the drain", err, time.Since(begin))
		}
	})
}

// A task that fails ends the grace, which would only be spent on refusing.
func TestFailureEndsTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begin := time.Now()
		err := run(ctx, Options{Tasks: []Task{&job{name: "good"}, &job{name: "bad", fail: errors.New("boom")}}, Grace: time.Hour})
		if err == nil || time.Since(begin) != 0 {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
	})
}

// A task that does not end when it should does not keep the program from ending.
func TestDrainThatHangsIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var log bytes.Buffer
		begin := time.Now()
		err := run(ctx, Options{
			Logger: slog.New(slog.NewTextHandler(&log, nil)), Tasks: []Task{&job{name: "stuck", drain: time.Hour}},
			DrainTime: func() time.Duration { return time.Minute },
		})
		if took := time.Since(begin); !errors.Is(err, errDrainHangs) || took != time.Minute+drainReserve {
			t.Errorf("got %v after %v", err, took)
		}
		if !strings.Contains(log.String(), "level=ERROR msg=stopped error=\"the drain did not end in time\"") {
			t.Errorf("the log says:\n%s", log.String())
		}
		time.Sleep(time.Hour)
	})
}

func TestRunEndsWithTheFirstFailure(t *testing.T) {
	tests := map[string]struct {
		task *job
		want string
	}{
		"error":   {&job{name: "bad", fail: errors.New("boom")}, "failed to run bad: boom"},
		"returns": {&job{name: "bad", quit: true}, "failed to run bad: ended without being asked to"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), Options{Tasks: []Task{&job{name: "good"}, test.task}})
			if err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// A taken admin port ends the start before a task runs, and before the log says that anything started.
func TestTakenAdminPort(t *testing.T) {
	var log bytes.Buffer
	taken := errors.New("port 9069/tcp is taken")
	task := &job{name: "task", quit: true}
	err := run(t.Context(), Options{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Admin: &probed{taken: taken}, Tasks: []Task{task},
	})
	if !errors.Is(err, taken) {
		t.Errorf("got %v", err)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), "failed to start") {
		t.Errorf("the log says:\n%s", log.String())
	}
}

func TestRunHeedsSIGTERM(t *testing.T) {
	time.AfterFunc(50*time.Millisecond, func() { _ = syscall.Kill(os.Getpid(), syscall.SIGTERM) })
	if err := Run(t.Context(), Options{Tasks: []Task{&job{name: "good"}}}); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestVersionNamesPlatform(t *testing.T) {
	if got := Version(); !strings.Contains(got, "linux/") || !strings.Contains(got, "commit ") {
		t.Errorf("got %q", got)
	}
}
