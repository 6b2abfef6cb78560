// Package soak runs stack-proxy for a while with every protocol at once, while its routes are reloaded and its
// backends come and go, and judges by a trend whether it keeps what it should give back: memory, goroutines,
// descriptors.
//
// Everything shares the loopback of a network namespace of its own. What fails counts as a failure unless a backend was
// killed while it went on.
package soak

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Options of a run.
type Options struct {
	Proxy    string        // the stack-proxy executable
	Duration time.Duration // of the load
	Idle     time.Duration // how long idle gRPC streams are silent; default a third of Duration, at most ten minutes
	Reload   time.Duration // between two reloads; default 5 s
	Churn    time.Duration // between two changes of the backends; default 10 s
	Dir      string        // for the routes, the zone, the files and the proxy's log
	Full     bool          // judge the trends, which takes minutes, and wait for kept connections to go
	Log      io.Writer
	LogLevel string // of the proxy; default warn
}

// Result of a run.
type Result struct {
	Begun    time.Time           `json:"begun"`
	Seconds  float64             `json:"seconds"`
	Traffic  map[string]*Traffic `json:"traffic"`
	Reloads  map[string]int      `json:"reloads"`
	Changes  map[string]int      `json:"changes"` // of the backends
	Idle     float64             `json:"idle_seconds"`
	Trends   []Trend             `json:"trends"`
	Samples  []Sample            `json:"samples"`
	Failures []string            `json:"failures,omitempty"`
}

// Where the proxy listens.
const (
	portTCP       = 42113
	portPass      = 42114 // gRPC, as TCP
	portGRPC      = 42115 // gRPC, as HTTP/2
	portIdlePass  = 42116
	portIdleGRPC  = 42117
	portHTTP      = 7171
	portFiles     = 8080
	portTFTP      = 69
	portSyslog    = 514
	portUDP       = 5000
	portExtra     = 5001
	portAdmin     = 9069
	proxyIP       = "127.0.0.1"
	nameServer    = "127.0.2.53"
	stableBackend = "127.0.1.9"
)

// run is what the parts of a run share.
type run struct {
	Options
	zone    *zone
	servers []*server // the ones that come and go
	stable  *server
	file    []byte // what is served as a file
	tally   *tally
	proxy   *proxyProcess

	mu       sync.Mutex
	failures []string
	kinds    map[string]int // of failures, of which the first few are kept
	reloads  map[string]int
}

func (r *run) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	kind, _, _ := strings.Cut(text, ":")
	if r.kinds[kind]++; r.kinds[kind] <= 10 {
		text = time.Now().UTC().Format(time.TimeOnly) + " " + text
		r.failures = append(r.failures, text)
		fmt.Fprintln(r.Log, text)
	}
}

// Run runs to its end. The process must be in a network namespace of its own, whose loopback is up. An error says that
// it could not be run; what went wrong with the proxy is in the result.
func Run(ctx context.Context, o Options) (*Result, error) {
	if o.Idle == 0 {
		o.Idle = min(o.Duration/3, 10*time.Minute)
	}
	if o.Reload == 0 {
		o.Reload = 5 * time.Second
	}
	if o.Churn == 0 {
		o.Churn = 10 * time.Second
	}
	if o.LogLevel == "" {
		o.LogLevel = "warn"
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	r := &run{Options: o, tally: newTally(), reloads: map[string]int{}, kinds: map[string]int{}}
	if err := r.site(); err != nil {
		return nil, err
	}
	defer r.leave()
	var err error
	if r.proxy, err = startProxy(ctx, r); err != nil {
		return nil, err
	}
	defer r.proxy.Kill()
	result := &Result{Begun: time.Now(), Idle: o.Idle.Seconds()}
	samples, err := r.load(ctx)
	if err != nil {
		return nil, err
	}
	result.Seconds = time.Since(result.Begun).Seconds()
	r.rest(ctx, samples[0])
	r.judgeMetrics(ctx)
	if err := r.proxy.stop(); err != nil {
		r.fail("the proxy did not end well: %v", err)
	}
	result.Traffic, result.Changes, result.Reloads = r.tally.traffic, r.tally.changes, r.reloads
	result.Samples = samples
	if o.Full {
		result.Trends = Trends(samples)
	}
	for _, t := range result.Trends {
		if t.Grown {
			r.fail("%s has grown from %.0f to %.0f, more than to %.0f", t.Metric, t.First, t.Last, t.Limit)
		}
	}
	for name, t := range result.Traffic {
		if t.OK == 0 {
			r.fail("%s: nothing went through", name)
		}
	}
	result.Failures = r.failures
	return result, ctx.Err()
}

// site makes what surrounds the proxy.
func (r *run) site() error {
	r.file = pattern(1 << 20)
	files := filepath.Join(r.Dir, "files")
	if err := os.MkdirAll(files, 0o755); err != nil {
		return fmt.Errorf("failed to make directory of files: %w", err)
	}
	if err := os.WriteFile(filepath.Join(files, "vmlinuz"), r.file, 0o600); err != nil {
		return fmt.Errorf("failed to write served file: %w", err)
	}
	var err error
	if r.zone, err = serveZone(); err != nil {
		return err
	}
	r.zone.set("stable.soak", stableBackend)
	if r.stable, err = serve(stableBackend, r); err != nil {
		return err
	}
	for i := range 3 {
		s, err := serve(fmt.Sprintf("127.0.1.%d", i+1), r)
		if err != nil {
			return err
		}
		r.servers = append(r.servers, s)
	}
	r.zone.set("backend.soak", r.serving()...)
	if err := os.WriteFile(r.path("resolv.conf"), []byte("nameserver "+nameServer+"\n"), 0o600); err != nil {
		return fmt.Errorf("failed to write resolv.conf: %w", err)
	}
	return r.writeRoutes(0)
}

func (r *run) leave() {
	for _, s := range append(r.servers, r.stable) {
		if s != nil {
			s.kill()
		}
	}
	if err := r.zone.server.Close(); err != nil {
		r.fail("the name server failed: %v", err)
	}
}

func (r *run) path(name string) string { return filepath.Join(r.Dir, name) }

// load has all traffic, reloads and changes go on for the duration, and takes samples.
func (r *run) load(ctx context.Context) ([]Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Duration)
	defer cancel()
	first, err := r.proxy.sample(ctx)
	if err != nil {
		return nil, err
	}
	samples := []Sample{first}
	var going sync.WaitGroup
	for _, l := range r.loads() {
		for i := range l.workers {
			going.Go(func() { r.worker(ctx, l, i) })
		}
	}
	going.Go(func() { r.reload(ctx) })
	going.Go(func() { r.churn(ctx) })
	every := max(r.Duration/360, 250*time.Millisecond)
	for ticker := time.NewTicker(every); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
			ticker.Stop()
			continue
		case <-ticker.C:
		}
		s, err := r.proxy.sample(ctx)
		if err != nil && ctx.Err() == nil {
			r.fail("failed to read the proxy's metrics: %v", err)
			cancel()
		}
		if err == nil {
			samples = append(samples, s)
		}
		if n := len(samples); n%20 == 0 {
			fmt.Fprintf(r.Log, "%5.0f s  %v\n", s.At.Sub(first.At).Seconds(), s)
		}
	}
	going.Wait()
	return samples, nil
}

// rest waits until nothing is open any more, and the proxy is as small as before. It keeps connections to the backends
// for up to 90 s, for which a full run waits.
func (r *run) rest(ctx context.Context, before Sample) {
	slack := 60.0
	if r.Full {
		slack = 12 // the admin port's own connections
	}
	var why string
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(500 * time.Millisecond) {
		_, families, err := r.proxy.metrics(ctx)
		if err != nil {
			r.fail("failed to read the proxy's metrics: %v", err)
			return
		}
		if why = stillOpen(families); why != "" {
			continue
		}
		last, err := SampleOf(families)
		if err != nil {
			r.fail("failed to read the proxy's metrics: %v", err)
			return
		}
		if last.Goroutines <= before.Goroutines+slack && last.Descriptors <= before.Descriptors+slack {
			fmt.Fprintf(r.Log, "at rest  %v\n", last)
			return
		}
		why = fmt.Sprintf("%v, was %v", last, before)
	}
	r.fail("without load the proxy still has more than before: %s", why)
}
