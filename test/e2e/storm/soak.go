package storm

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/soak"
)

// SoakOptions say how long storms follow each other.
type SoakOptions struct {
	Options
	Duration time.Duration
	Log      io.Writer
}

// SoakResult is what the pod was like after each of the storms.
type SoakResult struct {
	Seconds  float64                  `json:"seconds"`
	Storms   int                      `json:"storms"`
	Boots    int                      `json:"boots"`
	Samples  map[string][]soak.Sample `json:"samples"` // by program, after each storm
	Trends   map[string][]soak.Trend  `json:"trends"`
	Failures []string                 `json:"failures,omitempty"`
}

// soakCollections is how often the programs are asked to collect their garbage, which tells how much of the heap is
// live. By themselves they collect once in two minutes while there is little to do: until then the memory of a program
// that keeps nothing rises, and a soak of a few minutes would not see that it falls again.
const soakCollections = 20

// ports are the admin ports of the programs that are watched.
var ports = map[string]uint16{lab.StackProxy: lab.ProxyAdminPort, lab.DHCPRelay: lab.RelayAdminPort}

// Soak runs storms one after another through our pod. An error says that it could not; what went wrong with machines or
// programs is in the result.
func Soak(ctx context.Context, o SoakOptions) (result *SoakResult, err error) {
	o.Candidate = Ours
	s, err := Open(ctx, o.Options)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closed := s.Close(); err == nil {
			err = closed
		}
	}()
	result = &SoakResult{Samples: map[string][]soak.Sample{}, Trends: map[string][]soak.Trend{}}
	collections := 0
	for begin := time.Now(); time.Since(begin) < o.Duration; result.Seconds = time.Since(begin).Seconds() {
		storm, err := s.Storm(ctx, nil)
		if err != nil {
			return nil, err
		}
		result.Storms++
		result.Boots += storm.Finished()
		failures := storm.Failures()
		for _, failure := range slices.Sorted(maps.Keys(failures)) {
			result.fail(o.Log, "storm %d: %d machines: %s", result.Storms, failures[failure], failure)
		}
		for _, wrong := range storm.Wrong() {
			result.fail(o.Log, "storm %d: %s", result.Storms, wrong)
		}
		line := fmt.Sprintf("%5.0f s  storm %d", time.Since(begin).Seconds(), result.Storms)
		collect := time.Since(begin) >= o.Duration*time.Duration(collections)/soakCollections
		if collect {
			collections++
		}
		for _, program := range slices.Sorted(maps.Keys(ports)) {
			sample, err := s.sample(ctx, ports[program])
			if err == nil && collect {
				sample.Live, err = s.live(ctx, ports[program])
			}
			if err != nil {
				return nil, fmt.Errorf("failed to read the size of %s: %w", program, err)
			}
			result.Samples[program] = append(result.Samples[program], sample)
			line += fmt.Sprintf("; %s: %v", program, sample)
		}
		fmt.Fprintln(o.Log, line)
	}
	for program, samples := range result.Samples {
		result.Trends[program] = soak.Trends(samples)
		for _, t := range result.Trends[program] {
			if t.Grown {
				result.fail(o.Log, "%s: %s has grown from %.0f to %.0f, more than to %.0f",
					program, t.Metric, t.First, t.Last, t.Limit)
			}
		}
	}
	return result, nil
}

func (r *SoakResult) fail(log io.Writer, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.Failures = append(r.Failures, text)
	fmt.Fprintln(log, text)
}

// sample reads a program's size.
func (s *Site) sample(ctx context.Context, port uint16) (soak.Sample, error) {
	families, err := s.metrics(ctx, port)
	if err != nil {
		return soak.Sample{}, err
	}
	return soak.SampleOf(families)
}

// live has a program collect its garbage, and returns what is left in its heap, in bytes.
func (s *Site) live(ctx context.Context, port uint16) (float64, error) {
	text, err := s.ask(ctx, port, "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		return 0, err
	}
	return heapAlloc(text)
}

// heapAlloc finds what was in use in the text of a heap profile, which has it from before the text was written.
func heapAlloc(profile string) (float64, error) {
	_, after, _ := strings.Cut(profile, "\n# HeapAlloc = ")
	line, _, _ := strings.Cut(after, "\n")
	value, err := strconv.ParseFloat(line, 64)
	if err != nil {
		return 0, fmt.Errorf("failed to find HeapAlloc in a heap profile: %w", err)
	}
	return value, nil
}

func (s *Site) metrics(ctx context.Context, port uint16) (map[string]*dto.MetricFamily, error) {
	text, err := s.ask(ctx, port, "/metrics")
	if err != nil {
		return nil, err
	}
	var parser expfmt.TextParser
	return parser.TextToMetricFamilies(strings.NewReader(text))
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// ask reads a page of a program's admin port.
func (s *Site) ask(ctx context.Context, port uint16, page string) (string, error) {
	return s.Lab.Page(ctx, lab.RolePod, "http://"+netip.AddrPortFrom(loopback, port).String()+page)
}

// Markdown is the result for people.
func (r *SoakResult) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d storms, %d boots, %.0f s.\n\n| program | metric | first third | middle | last third | limit |\n"+
		"|---|---|---:|---:|---:|---:|\n", r.Storms, r.Boots, r.Seconds)
	for _, program := range slices.Sorted(maps.Keys(r.Trends)) {
		for _, t := range r.Trends[program] {
			fmt.Fprintf(&b, "| %s | %s | %.0f | %.0f | %.0f | %.0f |\n",
				program, t.Metric, t.First, t.Middle, t.Last, t.Limit)
		}
	}
	for _, program := range slices.Sorted(maps.Keys(r.Samples)) {
		fmt.Fprintf(&b, "\n%s:\n\n%s", program, soak.Course(r.Samples[program]))
	}
	for _, failure := range r.Failures {
		fmt.Fprintf(&b, "\n- %s", failure)
	}
	return b.String()
}
