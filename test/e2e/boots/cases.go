package boots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Emulators is how many virtual machines cases run at once.
const Emulators = 2

// RunCases stages cases, all labs at once, and judges what is said of each from its begin to its end. The error is
// about the labs; what is said wrongly is in the results, which have the order of the cases.
func RunCases(ctx context.Context, o Options, cases []Case) ([]Result, error) {
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	if o.Done == nil {
		o.Done = func(Result) {}
	}
	results := make([]Result, len(cases))
	places := map[*set][]int{}
	var sets []*set
	for i, c := range cases {
		if places[c.in] == nil {
			sets = append(sets, c.in)
		}
		places[c.in] = append(places[c.in], i)
	}
	emulators := make(chan struct{}, Emulators)
	faults := make([]error, len(sets))
	var all sync.WaitGroup
	for i, kind := range sets {
		all.Go(func() { faults[i] = runSet(ctx, o, kind, places[kind], cases, results, emulators) })
	}
	all.Wait()
	return results, errors.Join(append(faults, ctx.Err())...)
}

// runSet stages the cases of one lab.
func runSet(
	ctx context.Context, o Options, kind *set, places []int, cases []Case, results []Result, emulators chan struct{},
) (err error) {
	var own []Case
	for _, i := range places {
		own = append(own, cases[i])
	}
	s, err := openScene(ctx, o, kind, own)
	if err != nil {
		return fmt.Errorf("%s: %w", kind.name, err)
	}
	s.emulators = emulators
	defer func() { err = errors.Join(err, s.close()) }()
	var all sync.WaitGroup
	for at, i := range places {
		all.Go(func() {
			results[i] = s.stage(ctx, cases[i], at)
			o.Done(results[i])
		})
	}
	all.Wait()
	select {
	case err := <-s.Failed():
		return fmt.Errorf("%s: %w", kind.name, err)
	default:
		return nil
	}
}

// stage plays a case and watches what is said of its machines.
func (s *scene) stage(ctx context.Context, c Case, place int) Result {
	result := Result{Row: c.Row, Fault: c.Name, Machine: c.Staged, Expected: c.Want.expected()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var players []*player
	var ids []string
	for _, m := range c.machines(place) {
		players = append(players, s.newPlayer(ctx, m))
		ids = append(ids, m.MAC.String())
	}
	if c.of != nil {
		ids = c.of(players)
	}
	defer func() {
		for _, p := range players {
			p.end()
		}
	}()
	began := time.Now()
	played := make(chan struct{})
	go func() {
		defer close(played)
		c.play(players)
	}()
	if c.check != nil {
		<-played
		said, err := c.check(ctx, s)
		result.Said, result.Seconds, result.OK = said, time.Since(began).Seconds(), err == nil && said == result.Expected
		result.Verdict = cannotTell
		if result.OK {
			result.Verdict = right
		} else if err != nil {
			result.Trouble = err.Error()
		}
		return result
	}
	w := watch{scene: s, want: c.Want, ids: ids, seen: make([][]saw, len(ids)), began: began}
	w.follow(ctx, played, c)
	<-played
	for _, p := range players {
		if !p.began.IsZero() {
			began = p.began // it had to wait for its turn
		}
	}
	w.conclude(ctx, &result, began)
	for _, p := range players {
		if p.err != nil {
			result.OK, result.Trouble = false, fmt.Sprintf("%s was not staged: %v. %s", p.Name, p.err, result.Trouble)
		}
	}
	return result
}

// watch is what is said of the machines of a case.
type watch struct {
	scene *scene
	want  Want
	ids   []string
	seen  [][]saw // by machine, each when it is something new
	began time.Time
	good  time.Duration // since when what is right is said of all
}

// follow asks each second until what is right was said for some time, or patience has ended.
func (w *watch) follow(ctx context.Context, played <-chan struct{}, c Case) {
	stay, patience := max(c.stay, 10*time.Second), max(c.patience, 30*time.Second)
	var over time.Time
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-played:
			if over.IsZero() {
				over = time.Now()
			}
		default:
		}
		all := true
		for i, id := range w.ids {
			sight := w.scene.sight(ctx, id, time.Since(w.began))
			w.add(i, sight)
			all = all && w.want.good(sight)
		}
		switch now := time.Since(w.began); {
		case !all:
			w.good = 0
		case w.good == 0:
			w.good = now
		}
		if !over.IsZero() {
			held := w.good != 0 && time.Since(w.began)-w.good >= stay && time.Since(over) >= stay
			if held || time.Since(over) > patience+stay {
				return
			}
		}
		<-ticker.C
	}
}

// add notes what is said where it is something new.
func (w *watch) add(i int, s saw) {
	if n := len(w.seen[i]); n > 0 {
		last := w.seen[i][n-1]
		last.after = s.after
		if last.key() == s.key() {
			if w.want.Untrue == "" || !strings.Contains(last.text, w.want.Untrue) {
				w.seen[i][n-1].text = s.text
			}
			return
		}
	}
	w.seen[i] = append(w.seen[i], s)
}

func (s saw) key() string { return fmt.Sprint(s.state, s.at, s.next, s.cause, s.certain, s.boots) }

// conclude judges the case by the worst of its machines.
func (w *watch) conclude(ctx context.Context, result *Result, began time.Time) {
	worst := -1
	for i := range w.ids {
		verdict, why := w.want.judge(w.seen[i])
		for n, v := range verdicts {
			if v == verdict && n > worst {
				worst = n
				last := w.seen[i][len(w.seen[i])-1]
				result.Verdict, result.Trouble = verdict, why
				result.Said, result.Text, result.Certain = last.said(), last.text, last.certain
				result.Story = story(w.seen[i])
			}
		}
	}
	result.OK = result.Verdict == right
	result.Seconds = max(0, (w.good - began.Sub(w.began)).Seconds())
	if !result.OK {
		result.Seconds = time.Since(began).Seconds()
		return
	}
	for _, id := range w.ids {
		said := w.scene.look(ctx, id).trouble
		if strings.Contains(said, "page:") || strings.Contains(said, "command:") {
			result.OK, result.Trouble = false, said
		}
	}
}

// story is what was said, in order.
func story(all []saw) (lines []string) {
	for _, s := range all {
		line := fmt.Sprintf("%.0f s: %s", s.after.Seconds(), strings.TrimSpace(s.state+" at "+s.at))
		if s.cause != "" {
			sure := ""
			if s.certain {
				sure = ", certain"
			}
			line += fmt.Sprintf(": %s%s: %s", s.cause, sure, s.text)
		}
		lines = append(lines, line)
	}
	return lines
}

// sight asks what is said of a machine now. A machine that is not known has no state.
func (s *scene) sight(ctx context.Context, id string, after time.Duration) saw {
	body, err := s.get(ctx, "/api/v1/boots/"+id)
	var v view
	if err != nil || json.Unmarshal([]byte(body), &v) != nil || len(v.Boots) == 0 {
		return saw{after: after}
	}
	b := v.Boots[0]
	one := saw{after: after, state: b.State, at: b.At, next: b.Next, boots: len(v.Boots)}
	if b.Cause != nil {
		one.cause, one.text, one.certain = b.Cause.Name, b.Cause.Text, b.Cause.Certain
	}
	return one
}
