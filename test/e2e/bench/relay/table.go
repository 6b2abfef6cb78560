package relay

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Table writes the rows as a Markdown table: medians, a line per case and candidate.
func Table(w io.Writer, rows []Row) {
	tabs := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	defer tabs.Flush()
	fmt.Fprint(tabs, "| case\t| candidate\t")
	for _, u := range units {
		fmt.Fprintf(tabs, "| %s\t", u.metric)
	}
	fmt.Fprint(tabs, "|\n|---\t|---\t")
	for range units {
		fmt.Fprint(tabs, "|---:\t")
	}
	fmt.Fprintln(tabs, "|")
	for i := 0; i < len(rows); i += len(units) {
		fmt.Fprintf(tabs, "| %s\t| %s\t", rows[i].Case, rows[i].Candidate)
		for _, row := range rows[i:min(i+len(units), len(rows))] {
			format := "| %.1f\t"
			if row.Median >= 1000 {
				format = "| %.0f\t"
			}
			fmt.Fprintf(tabs, format, row.Median)
		}
		fmt.Fprintln(tabs, "|")
	}
}

// DifferentialTable writes the comparisons of candidates, of which ours is the first, as a Markdown table. Where a
// candidate did the same as ours stands "same".
func DifferentialTable(w io.Writer, comparisons []Comparison, candidates []string) {
	tabs := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	defer tabs.Flush()
	fmt.Fprintf(tabs, "| case\t| what is sent\t| %s\t|\n", strings.Join(candidates, "\t| "))
	fmt.Fprintf(tabs, "|---\t|---\t%s|\n", strings.Repeat("|---\t", len(candidates)))
	for _, c := range comparisons {
		fmt.Fprintf(tabs, "| `%s`\t| %s\t| %s\t", c.Name, c.What, c.Results[Ours])
		for _, candidate := range candidates[1:] {
			result, run := c.Results[candidate]
			switch {
			case !run:
				result = "not run"
			case result == c.Results[Ours]:
				result = "same"
			}
			fmt.Fprintf(tabs, "| %s\t", result)
		}
		fmt.Fprintln(tabs, "|")
	}
}

// Chart writes one metric of every case as a Mermaid chart, a line per candidate.
func Chart(w io.Writer, rows []Row, metric, title string) {
	byCandidate := map[string][]float64{}
	var cases []string
	most := 0.0
	for _, row := range rows {
		if row.Metric != metric {
			continue
		}
		if !slices.Contains(cases, row.Case) {
			cases = append(cases, row.Case)
		}
		byCandidate[row.Candidate] = append(byCandidate[row.Candidate], row.Median)
		most = max(most, row.Median)
	}
	fmt.Fprintf(w, "```mermaid\nxychart-beta\n    title %q\n    x-axis [%s]\n    y-axis \"%s\" 0 --> %.0f\n",
		title, strings.Join(cases, ", "), metric, most*1.05)
	for _, candidate := range measured {
		values := byCandidate[candidate]
		if len(values) != len(cases) {
			continue // it was not run
		}
		var words []string
		for _, v := range values {
			words = append(words, fmt.Sprintf("%.1f", v))
		}
		fmt.Fprintf(w, "    line %q [%s]\n", candidate, strings.Join(words, ", "))
	}
	fmt.Fprintln(w, "```")
}
