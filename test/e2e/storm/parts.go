package storm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// parts is a bench that is made in several runs: what earlier ones measured is read from a file, and what this one
// measures is added to it.
type parts struct {
	path    string
	within  time.Duration // after which nothing more is begun
	begun   time.Time
	samples map[string]map[string][]rounds.Sample // by case and candidate, in the order of the rounds
	asked   map[[2]string]int
	left    int
}

// openParts reads what the file has, if there is one.
func openParts(path string, within time.Duration) (*parts, error) {
	p := &parts{
		path: path, within: within, begun: time.Now(),
		samples: map[string]map[string][]rounds.Sample{}, asked: map[[2]string]int{},
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &p.samples)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to read samples of earlier parts: %w", err)
	}
	return p, nil
}

// next is the sample of the next round of a case and a candidate: an earlier one, or else what measure finds. Where the
// time is up it is [rounds.ErrLeftOut].
func (p *parts) next(name, candidate string, measure func() (rounds.Sample, error)) (rounds.Sample, error) {
	key := [2]string{name, candidate}
	round := p.asked[key]
	p.asked[key]++
	if earlier := p.samples[name][candidate]; round < len(earlier) {
		return earlier[round], nil
	}
	if time.Since(p.begun) >= p.within {
		p.left++
		return nil, fmt.Errorf("%s, round %d: for the next part: %w", candidate, round+1, rounds.ErrLeftOut)
	}
	sample, err := measure()
	if err != nil {
		return nil, err
	}
	if p.samples[name] == nil {
		p.samples[name] = map[string][]rounds.Sample{}
	}
	p.samples[name][candidate] = append(p.samples[name][candidate], sample)
	// A part that is killed must not cost the earlier ones.
	return sample, program.WriteJSON(p.path, p.samples)
}
