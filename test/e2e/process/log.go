package process

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// control finds what moves a terminal's cursor or changes its colours.
var control = regexp.MustCompile(`\x1b\[[0-9;?=]*[A-Za-z]|[^\t\x20-\x7e]`)

// LastLine is a sign of progress: the last line that the program of that name has printed to a file. The dots that
// firmware prints while it waits are no part of it, nor is what a kernel's watchdog says of a processor that hangs.
func LastLine(name, path string) func() string {
	var mu sync.Mutex
	last := ""
	return func() string {
		file, err := os.Open(path)
		if err != nil {
			return "" // nothing is printed yet
		}
		defer func() { _ = file.Close() }()
		mu.Lock()
		defer mu.Unlock()
		if said := lastLine(name, end(file)); said != "" {
			last = said
		}
		return last
	}
}

// A kernel whose processor hangs says so again and again, with the state of its registers: nothing has moved by that.
var (
	watchdog = regexp.MustCompile(`(soft|hard) lockup|hard LOCKUP|detected (expedited )?stalls on CPUs` +
		`|self-detected stall|INFO: task \S+ blocked for more than|\S+ kthread starved`)
	stamp = regexp.MustCompile(`^\[ *(\d+\.\d+)\]`)
)

// hung reports which lines a kernel's watchdog has printed: its complaint, and what has the time of the next second.
// Where the beginning is cut off, what stands before a complaint may be the end of an earlier one.
func hung(lines []string, cut bool) []bool {
	const dump = 1 // seconds
	of, until := make([]bool, len(lines)), -1.0
	for i, line := range lines {
		at := -1.0
		if found := stamp.FindStringSubmatch(line); found != nil {
			at, _ = strconv.ParseFloat(found[1], 64) // the expression lets numbers through
		}
		if watchdog.MatchString(line) {
			of[i], until = true, at+dump
			for j := range i {
				of[j] = of[j] || cut
			}
			cut = false
			continue
		}
		of[i] = at >= 0 && at <= until
	}
	return of
}

func lastLine(name, text string) string {
	const most = 200
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	hung := hung(lines, len(text) >= longest)
	for i := len(lines) - 1; i >= 0; i-- {
		if line := strings.TrimRight(control.ReplaceAllString(lines[i], ""), ". "); line != "" && !hung[i] {
			return name + " printed last: " + line[max(0, len(line)-most):]
		}
	}
	return ""
}
