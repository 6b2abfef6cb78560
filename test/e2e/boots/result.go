package boots

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
)

// Result is what the pod said of one fault.
type Result struct {
	Row      string `json:"row,omitempty"` // of the review that told of it
	Fault    string `json:"fault"`
	Machine  string `json:"machine"`  // "bios", "uefi" (QEMU) or "go"; of a case, with what it was staged
	Expected string `json:"expected"` // name of the cause
	// Said is the name of the cause, or what was said of the machine instead.
	Said    string  `json:"said"`
	Certain bool    `json:"certain"`
	Verdict string  `json:"verdict,omitempty"` // of a case: right, cannot tell, false, or false and certain
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"` // from power-on until page, API and command had said it
	// Text is the sentence that a person reads, and Trouble why it is not ok.
	Text    string `json:"text,omitempty"`
	Trouble string `json:"trouble,omitempty"`
	// Story is what was said of a case's machine from the begin on.
	Story []string `json:"story,omitempty"`
}

// Table writes a row for each fault.
func Table(w io.Writer, results []Result) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "row\tfault\tmachine\texpected\tsaid\tcertain\tok\tverdict\tseconds")
	for _, r := range results {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%v\t%v\t%s\t%.1f\n",
			r.Row, r.Fault, r.Machine, r.Expected, r.Said, r.Certain, r.OK, r.Verdict, r.Seconds)
	}
	return table.Flush()
}

// Score is how the rows of the review were judged, how many of them there are by verdict, and what else is not ok.
type Score struct {
	Rows map[string]int
	Else []string
}

// leastRight is how many rows of the review have to be right; of the others it has to be said that it cannot be told.
const leastRight = 38

// Count counts each row of the review by the worst verdict of its cases.
func Count(results []Result) Score {
	worst := map[string]string{}
	s := Score{Rows: map[string]int{}}
	for _, r := range results {
		switch {
		case r.Row == "" && !r.OK:
			s.Else = append(s.Else, r.Fault)
		case r.Row != "":
			verdict := r.Verdict
			if verdict == right && !r.OK {
				verdict = wrong // page or command say something else, or it was not staged
			}
			if slices.Index(verdicts, verdict) >= slices.Index(verdicts, worst[r.Row]) {
				worst[r.Row] = verdict
			}
		}
	}
	for _, verdict := range worst {
		s.Rows[verdict]++
	}
	return s
}

// verdicts from the best to the worst.
var verdicts = []string{"", right, cannotTell, wrong, wrongSure}

func (s Score) String() string {
	n := 0
	for _, each := range s.Rows {
		n += each
	}
	return fmt.Sprintf("%d rows of the review: %d right, %d cannot tell, %d false, %d falsely certain; else not ok: %q",
		n, s.Rows[right], s.Rows[cannotTell], s.Rows[wrong], s.Rows[wrongSure], s.Else)
}

// Failure is what is not as it has to be.
func (s Score) Failure() error {
	n := 0
	for _, each := range s.Rows {
		n += each
	}
	if s.Rows[wrong]+s.Rows[wrongSure] > 0 || s.Rows[right] < min(n, leastRight) || len(s.Else) > 0 {
		return fmt.Errorf("%s", s)
	}
	return nil
}
