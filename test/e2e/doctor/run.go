package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// longest is how long the doctor may take until a fault is named.
const longest = 15 * time.Second

// several runs are such that everything is to be there.
const several = 2

// Options say what to stage.
type Options struct {
	Faults  []Fault
	Healthy int    // runs without a fault
	Text    bool   // ask a second time, for the text
	Dir     string // of logs
	Logf    func(format string, args ...any)
}

// Result is what the doctor said of one fault.
type Result struct {
	Fault    string  `json:"fault"`
	Expected string  `json:"expected"` // name of the finding; "": none
	Said     string  `json:"said"`     // names of what is worse than info, or the one that was expected
	OK       bool    `json:"ok"`
	Seconds  float64 `json:"seconds"`
	Frames   int     `json:"frames"`
	Text     string  `json:"text,omitempty"`
	Trouble  string  `json:"trouble,omitempty"`
}

// report is what of the program's JSON matters here. It is written anew: this module asks as any script does.
type report struct {
	Findings []struct {
		Name     string `json:"name"`
		Severity string `json:"severity"`
		Text     string `json:"text"`
		Remedy   string `json:"remedy"`
	} `json:"findings"`
	Frames  int     `json:"frames"`
	Seconds float64 `json:"seconds"`
}

// Run stages faults one after the other in one lab, and runs without any first.
func Run(ctx context.Context, o Options) (results []Result, err error) {
	s, err := open(ctx, o.Dir, len(o.Faults) == 0 && o.Healthy < several, o.Logf)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	healthy := Fault{Name: "healthy", stage: nothing}
	for i := range o.Healthy {
		each := o
		each.Text = o.Text && i == 0
		results = append(results, s.meet(ctx, healthy, each))
	}
	for _, f := range o.Faults {
		if ctx.Err() != nil {
			return results, ctx.Err()
		}
		results = append(results, s.meet(ctx, f, o))
	}
	return results, nil
}

// meet stages a fault, asks, and takes it away.
func (s *site) meet(ctx context.Context, f Fault, o Options) (r Result) {
	r = Result{Fault: f.Name, Expected: f.Finding}
	defer func() {
		o.Logf("%-40s %-28s %v %.1f s %d frames %s %s", r.Fault, r.Said, r.OK, r.Seconds, r.Frames, r.Text, r.Trouble)
	}()
	undo, err := f.stage(ctx, s)
	if err == nil {
		err = s.judge(ctx, f, o, &r)
	}
	if undo != nil {
		err = errors.Join(err, undo())
	}
	if err != nil {
		r.Trouble = err.Error()
	}
	r.OK = err == nil
	return r
}

// judge asks, and says what is wrong with the answer.
func (s *site) judge(ctx context.Context, f Fault, o Options, r *Result) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var out bytes.Buffer
	ended := s.ask(ctx, f, &out, "--json")
	var got report
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		return fmt.Errorf("the result cannot be read: %w: %.500s", errors.Join(err, ended), &out)
	}
	r.Seconds, r.Frames = got.Seconds, got.Frames
	var names []string
	remedy := ""
	for _, finding := range got.Findings {
		if finding.Severity != "info" || finding.Name == f.Finding {
			names = append(names, finding.Name)
		}
		if finding.Name == f.Finding {
			r.Text, remedy = finding.Text, finding.Remedy
		}
	}
	r.Said = strings.Join(slices.Compact(names), " ")
	const mostFrames = 400
	switch {
	case r.Said != f.Finding:
		return fmt.Errorf("it says %q: %.1500s", r.Said, &out)
	case !strings.Contains(r.Text, f.Names):
		return fmt.Errorf("it does not name %s", f.Names)
	case got.Seconds > longest.Seconds():
		return errors.New("it takes too long")
	case got.Frames > mostFrames:
		return errors.New("it sends too many frames")
	case (ended == nil) != slices.Contains([]string{"", "netboot-not-allowed"}, f.Finding):
		return fmt.Errorf("its exit code is wrong: %w", ended)
	}
	if !o.Text {
		return nil
	}
	out.Reset()
	_ = s.ask(ctx, f, &out) // the exit code is that of the first
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, part := range []string{f.Finding, f.Names, remedy} {
		if !strings.Contains(text, strings.Join(strings.Fields(part), " ")) {
			return fmt.Errorf("the text does not say %q: %.1500s", part, text)
		}
	}
	return nil
}

// Table writes a row for each fault.
func Table(w io.Writer, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "fault\texpected\tsaid\tok\tseconds\tframes")
	for _, r := range results {
		fmt.Fprintf(table, "%s\t%s\t%s\t%v\t%.1f\t%d\n", r.Fault, r.Expected, r.Said, r.OK, r.Seconds, r.Frames)
	}
	return table.Flush()
}
