package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
)

const (
	// redraw is how often a terminal is drawn anew at most.
	redraw = 250 * time.Millisecond
	// maxEvent is the longest event that is read, in bytes.
	maxEvent = 4 << 20
)

// command is the boots page in a terminal.
type command struct {
	client
	watch  bool
	json   bool
	stdout io.Writer
	width  int // of the terminal in columns; 0 where there is none
}

// show is the command that shows what /boots does: all machines, or one.
func show(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	c := command{client: newClient(getenv), stdout: &cleanWriter{w: stdout}, width: columns(stdout)}
	flags := c.flags("show", "[MAC or address]", stderr)
	flags.BoolVar(&c.watch, "w", false, "go on with what changes")
	output := flags.String("o", "table", "table or json")
	filters := map[string]*string{
		"state": flags.String("state", "", "only machines in this state: stuck, failed, booting, quiet, booted"),
		"step":  flags.String("step", "", "only machines at this step"),
		"q":     flags.String("q", "", "only machines with all these words in names, MACs, addresses, files or causes"),
	}
	if code, over := c.parse(flags, args, false); over {
		return code
	}
	if c.json = *output == "json"; !c.json && *output != "table" {
		fmt.Fprintf(stderr, "%s show: -o %q: neither table nor json\n", name, *output)
		return 2
	}
	for key, value := range filters {
		if *value != "" {
			c.query.Set(key, *value)
		}
	}
	ctx, restore := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer restore()
	if err := c.run(ctx); err != nil && ctx.Err() == nil {
		fmt.Fprintf(&cleanWriter{w: stderr}, "%s show: %v\n", name, err)
		return 1
	}
	return 0
}

func (c *command) run(ctx context.Context) error {
	if c.watch {
		return c.follow(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	path := "/api/v1/boots"
	if c.id != "" {
		path = c.path()
	}
	body, err := c.ask(ctx, http.MethodGet, path)
	if err != nil {
		return err
	}
	defer body.Close()
	if c.json {
		var answer json.RawMessage
		if err := json.NewDecoder(body).Decode(&answer); err != nil {
			return fmt.Errorf("failed to read the answer: %w", err)
		}
		encoder := json.NewEncoder(c.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	}
	if c.id != "" {
		var m journal.MachineView
		if err := json.NewDecoder(body).Decode(&m); err != nil {
			return fmt.Errorf("failed to read the answer: %w", err)
		}
		return c.showMachine(m, time.Now())
	}
	var l page.List
	if err := json.NewDecoder(body).Decode(&l); err != nil {
		return fmt.Errorf("failed to read the answer: %w", err)
	}
	return c.showList(l.Machines, l.Sources, l.Now)
}

// follow shows what there is, and then what changes, until the stream ends.
func (c *command) follow(ctx context.Context) error {
	if c.id != "" {
		c.query.Set("id", c.id)
	}
	body, err := c.ask(ctx, http.MethodGet, "/api/v1/events")
	if err != nil {
		return err
	}
	defer body.Close()
	lines := make(chan []byte)
	failed := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // it ends when the body is closed
		defer close(lines)
		scanner := bufio.NewScanner(body)
		scanner.Buffer(nil, maxEvent)
		for scanner.Scan() {
			select {
			case lines <- append([]byte(nil), scanner.Bytes()...):
			case <-ctx.Done():
				return
			}
		}
		failed <- scanner.Err()
	}()
	w := newWatched(c)
	ticker := time.NewTicker(redraw)
	defer ticker.Stop()
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return fmt.Errorf("the stream of events has ended: %w", errors.Join(<-failed, io.ErrUnexpectedEOF))
			}
			if err := w.take(line); err != nil {
				return err
			}
		case <-ticker.C:
			if err := w.draw(); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// columns is how wide the terminal is; 0 where the output is none.
func columns(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return max(int(size.Col), 80)
}
