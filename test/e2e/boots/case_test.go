package boots

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestJudge: what is said at any time counts, the worst first.
func TestJudge(t *testing.T) {
	stuck := func(cause, text string, certain bool) saw {
		return saw{after: time.Second, state: "stuck", cause: cause, text: text, certain: certain}
	}
	booting, booted := saw{state: "booting", at: "dhcp"}, saw{state: "booted", at: "agent"}
	torn := Want{Causes: []string{"file-torn"}, Names: "/vmlinuz"}
	for _, test := range []struct {
		name string
		want Want
		all  []saw
		said string
	}{
		{"the cause", torn, []saw{booting, stuck("file-torn", "/vmlinuz ends early", false)}, right},
		{"it names nothing", torn, []saw{stuck("file-torn", "a file", true)}, cannotTell},
		{"nothing", torn, []saw{booting}, cannotTell},
		{"it is taken back", torn, []saw{stuck("file-torn", "/vmlinuz", false), booting}, cannotTell},
		{"another cause before", torn, []saw{stuck("slow", "", false), stuck("file-torn", "/vmlinuz", false)}, wrong},
		{"a certain one", torn, []saw{stuck("slow", "", true), stuck("file-torn", "/vmlinuz", false)}, wrongSure},
		{"booted", torn, []saw{booted, stuck("file-torn", "/vmlinuz", false)}, wrong},
		{"cannot tell", torn, []saw{stuck("cannot-tell", "", false)}, cannotTell},
		{"a good boot", Want{}, []saw{booting, booted}, right},
		{"a good boot that is called stuck for a while", Want{}, []saw{stuck("slow", "", false), booted}, wrong},
		{"what is true for a while", Want{Early: []string{"slow"}}, []saw{stuck("slow", "", true), booted}, right},
		{"a sentence that is untrue", Want{Causes: []string{"slow"}, Untrue: "hung up"}, []saw{stuck("slow", "it hung up", false)}, wrong},
		{"more boots than there were", Want{Boots: 1}, []saw{{state: "booted", boots: 2}}, wrong},
		{"a state that is never true", Want{States: []string{"booting"}, Not: []string{"quiet"}}, []saw{{state: "quiet"}, booting}, wrong},
		{"unheard of", Want{States: []string{""}}, []saw{{}}, right},
	} {
		t.Run(test.name, func(t *testing.T) {
			if verdict, why := test.want.judge(test.all); verdict != test.said {
				t.Errorf("the verdict is %q (%s), want %q", verdict, why, test.said)
			}
		})
	}
}

// TestCases: they are those of the review, each is a machine of its own in its lab, and each has its result counted.
func TestCases(t *testing.T) {
	var rows []string
	ids := map[string]bool{}
	sets := map[*set]int{}
	for _, c := range Cases() {
		if ids[c.ID()] || strings.ContainsAny(c.ID(), "/ ") || c.in == nil || c.play == nil || c.Staged == "" {
			t.Errorf("case %q has the id %q", c.Name, c.ID())
		}
		ids[c.ID()] = true
		if c.Row != "" && !slices.Contains(rows, c.Row) {
			rows = append(rows, c.Row)
		}
		for _, m := range c.machines(sets[c.in]) {
			if !m.IP.IsValid() || ids[m.MAC.String()+c.in.name] || ids[m.IP.String()+c.in.name] {
				t.Errorf("case %q: %s, %s is another's in %s", c.Name, m.MAC, m.IP, c.in.name)
			}
			ids[m.MAC.String()+c.in.name], ids[m.IP.String()+c.in.name] = true, true
		}
		sets[c.in]++
	}
	if len(rows) != 42 {
		t.Errorf("%d rows of the review: %v, want 42", len(rows), rows)
	}
}

// TestCount: a row is as good as the worst of its cases.
func TestCount(t *testing.T) {
	score := Count([]Result{
		{Row: "1", Verdict: right, OK: true},
		{Row: "1", Verdict: cannotTell},
		{Row: "2", Verdict: right, OK: true},
		{Row: "3a", Verdict: wrong}, {Row: "3a", Verdict: right, OK: true},
		{Row: "4", Verdict: right}, // another way of looking says something else
		{Fault: "good", OK: true}, {Fault: "bad"},
	})
	want := Score{Rows: map[string]int{right: 1, cannotTell: 1, wrong: 2}, Else: []string{"bad"}}
	if diff := cmp.Diff(want, score); diff != "" {
		t.Error(diff)
	}
	if score.Failure() == nil {
		t.Error("it is no failure")
	}
}
