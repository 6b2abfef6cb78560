package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/journey"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/storm"
	"github.com/tinkerbell/stack/test/e2e/storm/machines"
)

// storm boots many machines at once and shows a table that fills.
func (d *demo) storm(ctx context.Context) (err error) {
	d.say("building what %d machines need", d.count)
	s, err := storm.Open(ctx, storm.Options{
		Candidate: storm.Ours, Machines: d.count, Dir: d.dir, Logf: d.say,
		Unlimited: d.keep, // what ends the cgroups would be gone
	})
	if err != nil {
		return err
	}
	defer func() {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if err := d.publish(s.Lab); err != nil {
		return err
	}
	d.say("the lab is up; switching on %d machines", d.count)
	fmt.Fprintln(d.out)
	result, err := d.watch(ctx, s)
	if err != nil {
		return err
	}
	sample := result.Sample()
	fmt.Fprintf(d.out, "\n%d of %d machines installed; 99 %% within %.1f s, the last after %.1f s; %d wrong answers\n",
		result.Finished(), d.count, sample["seconds_99_of_finished"], sample["seconds_100"], len(result.Wrong()))
	fmt.Fprintf(d.out, "a boot cost the pod %.0f ms of processor; stack-proxy took up to %.0f MiB, dhcp-relay %.0f\n",
		1000*sample["cpu_pod"], sample["rss_proxy"], sample["rss_relay"])
	for failure, n := range result.Failures() {
		fmt.Fprintf(d.out, "%d failed: %s\n", n, failure)
	}
	path := filepath.Join(d.dir, "result.json")
	fmt.Fprintf(d.out, "\nresult   %s\nlogs     %s\n", path, filepath.Join(d.dir, "logs"))
	ok := result.Finished() == d.count && len(result.Wrong()) == 0
	if err := program.WriteJSON(path, map[string]any{"ok": ok, "machines": result.Machines}); err != nil {
		return err
	}
	booted := journey.Booted(ctx, s.Lab, result.Finished())
	if d.keep {
		l := s.Lab
		s = nil
		if err := d.stay(l); err != nil {
			return err
		}
	}
	if !ok {
		return errors.Join(errors.New("not every machine installed what is its own"), booted)
	}
	if booted != nil {
		return booted
	}
	fmt.Fprintln(d.out, "The page says of all machines that they are booted.")
	fmt.Fprintf(d.out, "\nOK: all machines installed, in %.1f s\n", time.Since(d.start).Seconds())
	return nil
}

// watch runs the storm. On a terminal the table is drawn anew in its place, elsewhere it is printed now and then.
func (d *demo) watch(ctx context.Context, s *storm.Site) (*storm.Result, error) {
	board := storm.NewBoard(d.count)
	terminal, lines := isTerminal(d.out), 0
	var drawn time.Time
	draw := func(every time.Duration) {
		if time.Since(drawn) < every {
			return
		}
		drawn = time.Now()
		if terminal && lines > 0 {
			fmt.Fprintf(d.out, "\x1b[%dA\x1b[J", lines)
		} else if lines > 0 {
			fmt.Fprintln(d.out)
		}
		lines = board.Render(d.out)
	}
	every := 5 * time.Second
	if terminal {
		every = 200 * time.Millisecond
	}
	result, err := s.Storm(ctx, func(l machines.Line) {
		board.Add(l)
		draw(every)
	})
	draw(0)
	return result, err
}

func isTerminal(out any) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(file.Fd()), unix.TCGETS)
	return err == nil
}
