package bootspage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/test/e2e/attack"
	"github.com/tinkerbell/stack/test/e2e/bench/report"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
)

// Looked is stack-boots in a container while many look.
type Looked struct {
	Options
	Memory  int64 // of the container, in bytes
	Viewers int
}

// mebibyte for people.
const mebibyte = 1 << 20

// Run has all machines boot and be looked at all the time. The error says that the kernel killed stack-boots, or that
// it did not show all machines.
func (l Looked) Run(ctx context.Context) ([]report.Row, error) {
	return rounds.Run(ctx, []rounds.Case{{
		Name: fmt.Sprintf("boots-looked-at-%d", l.Machines),
		Units: map[string]string{
			"peak": "MiB", "kills": "times", "shown": "machines", "answers": "answers", "refused": "answers",
		},
		Candidates: []string{"stack-boots"},
		Measure:    func(ctx context.Context, _ string) (rounds.Sample, error) { return l.measure(ctx) },
	}}, rounds.Options{Runs: l.Runs, Log: l.Log})
}

func (l Looked) measure(ctx context.Context) (_ rounds.Sample, err error) {
	container, err := attack.NewContainer("boots", l.Memory)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, container.Remove()) }()
	container.Watch()
	l.Env = append(l.Env, attack.GoMemory(l.Memory))
	closed, err := open(ctx, l.Options, container.Command(l.Boots))
	if err != nil {
		return nil, err
	}
	defer closed()
	looking, end := context.WithCancel(ctx)
	defer end()
	var answers, refused atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer end()
	for i := range l.Viewers {
		wg.Go(func() { look(looking, i, &answers, &refused) })
	}
	begin := time.Now()
	booting, over := context.WithTimeout(ctx, 5*l.Duration)
	defer over()
	if err := boot(booting, l.Options); err != nil {
		return nil, fmt.Errorf("failed to have machines boot: %w; the container uses %s", err, container.Parts())
	}
	time.Sleep(time.Until(begin.Add(l.Duration)))
	text, err := get(ctx, http.DefaultClient, "http://"+admin+"/api/v1/boots")
	fmt.Fprintln(l.Log, "the container uses", container.Parts())
	peak, kills, failure := container.Peak()
	if err := errors.Join(err, failure); err != nil {
		return nil, fmt.Errorf("failed to look at the end, after %d kills: %w", kills, err)
	}
	shown := strings.Count(text, `"boots":[`)
	if kills > 0 || shown < l.Machines {
		return nil, fmt.Errorf("it shows %d of %d machines, the kernel killed it %d times", shown, l.Machines, kills)
	}
	return rounds.Sample{
		"peak": float64(peak) / mebibyte, "kills": float64(kills), "shown": float64(shown),
		"answers": float64(answers.Load()), "refused": float64(refused.Load()),
	}, nil
}

// look is a viewer: of three, one has the live list open, one loads the page again and again,
// and one reads the whole list.
func look(ctx context.Context, i int, answers, refused *atomic.Int64) {
	path := []string{"/boots/live", "/boots", "/api/v1/boots"}[i%3]
	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+path, http.NoBody)
		if err != nil {
			return
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			if response.StatusCode == http.StatusOK {
				answers.Add(1)
			} else {
				refused.Add(1)
			}
			_, _ = io.Copy(io.Discard, response.Body) // a stream goes on until its end
			_ = response.Body.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
