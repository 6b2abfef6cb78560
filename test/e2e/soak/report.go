package soak

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Markdown is the result for people: how it went over time, as a table and a chart, and what was carried.
func (r *Result) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%.0f s of load; reloads %v; backends %v; streams idle for %.0f s.\n\n", r.Seconds, r.Reloads,
		r.Changes, r.Idle)
	b.WriteString(Course(r.Samples))
	b.WriteString("\n| trend | first third | middle | last third | limit |\n|---|---:|---:|---:|---:|\n")
	for _, t := range r.Trends {
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.0f | %.0f |\n", t.Metric, t.First, t.Middle, t.Last, t.Limit)
	}
	b.WriteString("\n| traffic | went well | cut off with a killed backend | failed |\n|---|---:|---:|---:|\n")
	for _, name := range slices.Sorted(maps.Keys(r.Traffic)) {
		t := r.Traffic[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %d |\n", name, t.OK, t.Excused, t.Failed)
	}
	for _, failure := range r.Failures {
		fmt.Fprintf(&b, "\n- %s", failure)
	}
	return b.String()
}

// rows of the table over time.
const rows = 10

// Course is a program's size over time, as a table of medians and a chart.
func Course(samples []Sample) string {
	var b strings.Builder
	b.WriteString("| minutes | RSS MiB | heap MiB | goroutines | descriptors |\n|---:|---:|---:|---:|---:|\n")
	var at, rss []string
	for i := range rows {
		part := samples[len(samples)*i/rows : len(samples)*(i+1)/rows]
		if len(part) == 0 {
			continue
		}
		median := func(of func(Sample) float64) float64 {
			values := make([]float64, len(part))
			for i, s := range part {
				values[i] = of(s)
			}
			slices.Sort(values)
			return values[len(values)/2]
		}
		minutes := part[len(part)-1].At.Sub(samples[0].At).Minutes()
		resident := median(func(s Sample) float64 { return s.RSS / (1 << 20) })
		at, rss = append(at, fmt.Sprintf("%.1f", minutes)), append(rss, fmt.Sprintf("%.1f", resident))
		fmt.Fprintf(&b, "| %.1f | %.1f | %.1f | %.0f | %.0f |\n", minutes, resident,
			median(func(s Sample) float64 { return s.Heap / (1 << 20) }),
			median(func(s Sample) float64 { return s.Goroutines }),
			median(func(s Sample) float64 { return s.Descriptors }))
	}
	b.WriteString("\n```mermaid\nxychart-beta\n    title \"RSS in MiB by minutes\"\n")
	fmt.Fprintf(&b, "    x-axis [%s]\n    y-axis \"MiB\"\n    line [%s]\n```\n",
		strings.Join(at, ", "), strings.Join(rss, ", "))
	return b.String()
}
