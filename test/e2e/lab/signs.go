package lab

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/progress"
)

// Starved is how long the process's threads have waited for a processor since they began, in all. An emulator on a busy
// machine cannot help it; see [progress.Patience].
func (p *Proc) Starved() (waited time.Duration) {
	files, _ := filepath.Glob("/proc/" + strconv.Itoa(p.Pid()) + "/task/*/schedstat") // the pattern is right
	for _, file := range files {
		text, err := os.ReadFile(file)
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 2 {
			continue // the thread has ended
		}
		if ns, err := strconv.ParseInt(fields[1], 10, 64); err == nil { // proc(5): run time, run delay, timeslices
			waited += time.Duration(ns)
		}
	}
	return waited
}

// control finds what moves a terminal's cursor or changes its colours.
var control = regexp.MustCompile(`\x1b\[[0-9;?=]*[A-Za-z]|[^\t\x20-\x7e]`)

// LastLine is a sign of progress: the last line of a file with what somebody printed, named as it. The dots that
// firmware prints while it waits are no part of it.
func LastLine(name, path string) func() string {
	return func() string {
		const most, end = 200, 4096
		file, err := os.Open(path)
		if err != nil {
			return "" // nothing is printed yet
		}
		defer func() { _ = file.Close() }()
		text := make([]byte, end)
		size, err := file.Seek(0, 2)
		if err != nil {
			return ""
		}
		n, _ := file.ReadAt(text, max(0, size-end)) // at the end it is io.EOF
		lines := bytes.FieldsFunc(text[:n], func(r rune) bool { return r == '\n' || r == '\r' })
		for i := len(lines) - 1; i >= 0; i-- {
			if line := strings.TrimRight(control.ReplaceAllString(string(lines[i]), ""), ". "); line != "" {
				return name + " printed last: " + line[max(0, len(line)-most):]
			}
		}
		return ""
	}
}

// Line waits for a line of a file, such as a log. It gives up when the file ends with the same line for half a minute.
func Line(ctx context.Context, path string, matches func(line string) bool) error {
	ctx, watch := progress.Begin(ctx, progress.Patience{
		Quiet: readyTimeout, Signs: []func() string{LastLine(filepath.Base(path), path)},
	})
	defer watch.End()
	return Tail(ctx, path, func(line string) bool { return !matches(line) })
}

// patience is how long a program of the lab may be quiet: its log is a sign of progress.
func (l *Lab) patience(name string) progress.Patience {
	return progress.Patience{Quiet: readyTimeout, Signs: []func() string{LastLine(name, l.LogPath(name))}}
}
