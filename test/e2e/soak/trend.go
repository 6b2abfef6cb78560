package soak

import (
	"context"
	"fmt"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Sample is the proxy's size at a moment.
type Sample struct {
	At          time.Time `json:"at"`
	RSS         float64   `json:"rss_bytes"`
	Heap        float64   `json:"heap_bytes"`           // in use, garbage included
	Live        float64   `json:"live_bytes,omitempty"` // in use right after a collection; 0: none was asked for
	Goroutines  float64   `json:"goroutines"`
	Descriptors float64   `json:"descriptors"`
}

func (s Sample) String() string {
	return fmt.Sprintf("rss %.1f MiB, heap %.1f MiB, %.0f goroutines, %.0f descriptors",
		s.RSS/(1<<20), s.Heap/(1<<20), s.Goroutines, s.Descriptors)
}

func (p *proxyProcess) sample(ctx context.Context) (Sample, error) {
	_, families, err := p.metrics(ctx)
	if err != nil {
		return Sample{}, err
	}
	return SampleOf(families)
}

// SampleOf reads a program's size from its metrics.
func SampleOf(families map[string]*dto.MetricFamily) (s Sample, err error) {
	gauge := func(name string) float64 {
		var all []*dto.Metric
		if family := families[name]; family != nil {
			all = family.GetMetric()
		}
		if len(all) == 0 {
			err = fmt.Errorf("failed to find metric %s", name)
			return 0
		}
		return all[0].GetGauge().GetValue()
	}
	s = Sample{
		At: time.Now(), RSS: gauge("process_resident_memory_bytes"), Heap: gauge("go_memstats_heap_inuse_bytes"),
		Goroutines: gauge("go_goroutines"), Descriptors: gauge("process_open_fds"),
	}
	return s, err
}

// Trend compares the first and the last third of the samples, after the first tenth, in which caches and pools fill.
type Trend struct {
	Metric string  `json:"metric"`
	First  float64 `json:"first_third"`
	Middle float64 `json:"middle_third"`
	Last   float64 `json:"last_third"`
	Limit  float64 `json:"limit"` // of the last
	Grown  bool    `json:"grown"`
}

// growth is what may be noise: the load is random, and so is the moment of a sample.
const growth = 1.10

// measure is one figure of the samples.
type measure struct {
	name string
	of   func(Sample) float64
	// part of the samples of a third, when sorted, that stands for it: the median for most. Resident memory rises until
	// a collection, so that a median says how long ago that was; what it comes to at its highest is what has to be flat.
	part  float64
	slack float64
}

// Trends judges samples in the order of their times. Where some have Live, that is judged in place of Heap, which rises
// from one collection to the next.
func Trends(samples []Sample) []Trend {
	measures := []measure{
		{"goroutines", func(s Sample) float64 { return s.Goroutines }, 0.5, 20},
		{"descriptors", func(s Sample) float64 { return s.Descriptors }, 0.5, 20},
		{"rss_bytes", func(s Sample) float64 { return s.RSS }, 0.9, 3 << 20},
	}
	live := slices.DeleteFunc(slices.Clone(samples), func(s Sample) bool { return s.Live == 0 })
	if len(live) == 0 {
		measures = append(measures, measure{"heap_bytes", func(s Sample) float64 { return s.Heap }, 0.5, 3 << 20})
	}
	var all []Trend
	for _, m := range measures {
		all = append(all, m.judge(samples))
	}
	if len(live) > 0 {
		m := measure{"live_bytes", func(s Sample) float64 { return s.Live }, 0.5, 1 << 20}
		all = append(all, m.judge(live))
	}
	return all
}

func (m measure) judge(samples []Sample) Trend {
	warm := samples[(len(samples)+9)/10:]
	third := func(i int) float64 {
		var values []float64
		for _, s := range warm[len(warm)*i/3 : len(warm)*(i+1)/3] {
			values = append(values, m.of(s))
		}
		if len(values) == 0 {
			return 0
		}
		slices.Sort(values)
		return values[int(float64(len(values))*m.part)]
	}
	t := Trend{Metric: m.name, First: third(0), Middle: third(1), Last: third(2)}
	t.Limit = t.First*growth + m.slack
	t.Grown = t.Last > t.Limit
	return t
}
