package datagram

import (
	"fmt"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/bench/report"
)

// barWidth is the length of the longest bar, in characters.
const barWidth = 40

// Markdown writes rows as a chart for each metric: a bar for each candidate's median.
func Markdown(rows []report.Row) string {
	var out strings.Builder
	seen := make(map[[2]string]bool)
	for _, first := range rows {
		key := [2]string{first.Case, first.Metric}
		if seen[key] {
			continue
		}
		seen[key] = true
		var same []report.Row
		for _, r := range rows {
			if r.Case == first.Case && r.Metric == first.Metric {
				same = append(same, r)
			}
		}
		chart(&out, same)
	}
	return out.String()
}

func chart(out *strings.Builder, rows []report.Row) {
	longest := 0.0
	for _, r := range rows {
		longest = max(longest, r.Median)
	}
	r := rows[0]
	fmt.Fprintf(out, "```\n%s/%s (%s, median of %d, min to max)\n", r.Case, r.Metric, r.Unit, r.Runs)
	for _, r := range rows {
		bar := 0
		if longest > 0 {
			bar = int(max(r.Median, 0) / longest * barWidth)
		}
		fmt.Fprintf(out, "%-13s %10s  %-*s  %s to %s\n",
			r.Candidate, short(r.Median), barWidth, strings.Repeat("#", bar), short(r.Min), short(r.Max))
	}
	out.WriteString("```\n\n")
}

// short writes a figure with what precision it deserves.
func short(v float64) string {
	if v >= 1000 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}
