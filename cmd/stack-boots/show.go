package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
)

// askEvery is how often the program is asked by those that wait for changes.
const askEvery = time.Second

// A terminal that is drawn anew: without wrapping lines, from its top left. And as it was.
const drawAnew, wrapAgain = "\x1b[?7l\x1b[H\x1b[J", "\x1b[?7h"

// command is the boots page in a terminal.
type command struct {
	client
	watch, json bool
	stdout      io.Writer
	screen      io.Writer // the terminal; nil where the output is none

	list    page.List
	machine journal.MachineView
	ahead   time.Duration // of the server's clock
}

// show is the command that shows what /boots does: all machines, or one.
func show(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	c := command{client: newClient(getenv), stdout: &cleanWriter{w: stdout}}
	flags := c.flags("show", "[MAC, address or name]", stderr)
	flags.BoolVar(&c.watch, "w", false, "go on with what changes")
	output := flags.String("o", "table", "table or json")
	for key, usage := range map[string]string{
		"state":   "only machines in these states, with commas between: stuck, failed, booting, quiet, booted",
		"step":    "only machines at this step",
		"cause":   "only machines with this cause",
		"mac":     "only machines with this MAC, or a part of it",
		"address": "only machines with this address, its beginning, or in this prefix",
		"q":       "only machines with all these words in names, MACs, addresses, files or causes",
	} {
		flags.Func(key, usage, func(value string) error { c.query.Set(key, value); return nil })
	}
	if code, over := c.parse(flags, args, false); over {
		return code
	}
	if c.json = *output == "json"; !c.json && *output != "table" {
		fmt.Fprintf(stderr, "%s: -o %q: neither table nor json\n", flags.Name(), *output)
		return 2
	}
	ctx, restore := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer restore()
	if err := c.run(ctx, stdout); err != nil && ctx.Err() == nil {
		return fail(flags, err)
	}
	return 0
}

func (c *command) run(ctx context.Context, stdout io.Writer) error {
	switch {
	case c.watch && c.json:
		return c.copyEvents(ctx)
	case c.watch:
		if rows := rowsOf(stdout); rows > 0 {
			c.screen = stdout
			c.query.Set("limit", strconv.Itoa(rows))
			defer func() { _, _ = io.WriteString(stdout, wrapAgain) }()
		}
		return c.follow(ctx)
	case c.json:
		var answer json.RawMessage
		if _, err := c.get(ctx, &answer); err != nil {
			return err
		}
		encoder := json.NewEncoder(c.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	default:
		if err := c.look(ctx); err != nil {
			return err
		}
		_, err := io.WriteString(c.stdout, c.text())
		return err
	}
}

// look asks for what is shown.
func (c *command) look(ctx context.Context) error {
	if c.id != "" {
		var m journal.MachineView
		fresh, err := c.get(ctx, &m)
		if fresh {
			c.machine = m
		}
		return err
	}
	var l page.List
	fresh, err := c.get(ctx, &l)
	if fresh {
		c.list, c.ahead = l, time.Until(l.Now)
	}
	return err
}

// follow shows what there is, and then what changes: a terminal is drawn anew, elsewhere each change is a line.
func (c *command) follow(ctx context.Context) error {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	said := map[string]bool{}
	for first := true; ; {
		text := ""
		switch err := c.look(ctx); {
		case unheard(err) && (c.screen != nil || !said[err.Error()]):
			text = err.Error() + "\n"
			said[err.Error()] = true
		case unheard(err):
		case err != nil:
			return err
		case first || c.screen != nil:
			text, first = c.text(), false
			c.news(said)
		default:
			text = c.news(said)
		}
		if c.screen != nil {
			_, _ = io.WriteString(c.screen, drawAnew)
		}
		if _, err := io.WriteString(c.stdout, text); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// copyEvents prints the API's events as they are.
func (c *command) copyEvents(ctx context.Context) error {
	if c.id != "" {
		c.query.Set("id", c.id)
	}
	response, err := c.ask(ctx, http.MethodGet, "/api/v1/events")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(c.stdout, response.Body); err != nil {
		return err
	}
	return errors.New("the stream of events has ended")
}

// rowsOf is how many rows the terminal has; 0 where the output is none.
func rowsOf(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return max(int(size.Row), 24)
}
