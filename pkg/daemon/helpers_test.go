package daemon

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// helper tells when it has begun and ended.
type helper struct {
	began, ended chan struct{}
	fail         error
}

func (h *helper) Run(ctx context.Context) error {
	close(h.began)
	defer close(h.ended)
	if h.fail != nil {
		return h.fail
	}
	<-ctx.Done()
	return nil
}

func (*helper) Ready() error   { return errors.New("never ready") }
func (*helper) String() string { return "helper" }

// draining is a task that looks at a helper during its drain.
type draining struct {
	*helper
	test func()
}

func (d draining) Run(ctx context.Context) error {
	<-ctx.Done()
	d.test()
	return nil
}
func (draining) Ready() error { return nil }

func TestHelpers(t *testing.T) {
	for name, fail := range map[string]error{"runs": nil, "fails": errors.New("no socket")} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			h := &helper{began: make(chan struct{}), ended: make(chan struct{}), fail: fail}
			tasks := []Task{draining{h, func() {
				select {
				case <-h.ended:
					if fail == nil {
						t.Error("the helper has ended before the task")
					}
				default:
				}
			}}}
			options := Options{Tasks: tasks, Helpers: []Task{h}, Logger: slog.New(slog.NewTextHandler(&log, nil))}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- run(ctx, options) }()
			<-h.began
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			<-h.ended
			if got := strings.Contains(log.String(), "helper failed"); got != (fail != nil) {
				t.Errorf("logged %q", &log)
			}
		})
	}
}
