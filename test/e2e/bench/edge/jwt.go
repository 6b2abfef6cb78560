package edge

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
)

// tokenMetrics are the metrics of the sub-benchmarks of BenchmarkCheck in pkg/edge/jwt, by candidate.
var tokenMetrics = map[string]map[string][2]string{
	ours: {
		"new": {"us_per_check", "allocs_per_check"}, // by a key that is known
	},
	alone: {"signature": {"us_per_check", "allocs_per_check"}},
}

var benchmarkLine = regexp.MustCompile(
	`(?m)^BenchmarkCheck/ES256/(\w+)\S*\s+\d+\s+([\d.]+) ns/op\s+\d+ B/op\s+(\d+) allocs/op`)

// tokens has the Go benchmark of the package measure. The other cases' client could not tell microseconds, and what
// an HTTP request costs besides is not the token's.
func (b *bench) tokens(ctx context.Context, candidate string) (rounds.Sample, error) {
	if b.Tokens == "" {
		return nil, fmt.Errorf("no test program of pkg/edge/jwt is given: %w", rounds.ErrLeftOut)
	}
	s := rounds.Sample{}
	for name, metrics := range tokenMetrics[candidate] {
		cmd := exec.CommandContext(ctx, b.Tokens, "-test.run", "^$", "-test.bench", "^BenchmarkCheck$/^ES256$/^"+name+"$",
			"-test.benchmem", "-test.benchtime", "0.5s")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("failed to run %s: %w\n%s", b.Tokens, err, out)
		}
		match := benchmarkLine.FindSubmatch(out)
		if match == nil || string(match[1]) != name {
			return nil, fmt.Errorf("failed to read the figures of %s:\n%s", name, out)
		}
		ns, _ := strconv.ParseFloat(string(match[2]), 64) // the expression lets nothing else through
		allocs, _ := strconv.ParseFloat(string(match[3]), 64)
		s[metrics[0]], s[metrics[1]] = ns/1e3, allocs
	}
	return s, nil
}
