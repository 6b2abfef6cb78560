package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
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
	stdout io.Writer
	screen io.Writer // the terminal; nil where the output is none

	list    page.List
	machine journal.MachineView
	ahead   time.Duration // of the server's clock
}

// show is the command that shows what /boots does: all machines, or one.
func show(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	c := command{client: newClient(getenv), stdout: cleanWriter{stdout}}
	flags := c.flags("show", "[MAC, address or name]", stderr)
	watch := flags.Bool("w", false, "go on with what changes")
	output := flags.String("o", "table", "table or json")
	for key, usage := range map[string]string{
		"state":   "only machines in these states, with commas between: stuck, failed, booting, quiet, installed, booted",
		"step":    "only machines at this step",
		"cause":   "only machines with this cause",
		"mac":     "only machines with this MAC, or a part of it",
		"address": "only machines with this address, its beginning, or in this prefix",
		"q":       "only machines with all these words in names, MACs, addresses, files or causes",
	} {
		flags.Func(key, usage, func(value string) error { c.query.Set(key, value); return nil })
	}
	if err := c.parse(flags, args, false); err != nil {
		return err
	}
	asJSON := *output == "json"
	switch rows := rowsOf(stdout); {
	case !asJSON && *output != "table":
		return exit{2, fmt.Sprintf("-o %q: neither table nor json", *output)}
	case *watch && asJSON:
		return c.copyEvents(ctx)
	case *watch && rows > 0:
		c.screen = stdout
		c.query.Set("limit", strconv.Itoa(rows))
		defer func() { _, _ = io.WriteString(stdout, wrapAgain) }()
		return c.follow(ctx)
	case *watch:
		return c.follow(ctx)
	case asJSON:
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
		_, err := io.WriteString(c.stdout, c.text(""))
		return err
	}
}

// look asks for the machine, or for all.
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

// text shows the machine, or all; with kind "news of " only the lines that change with it, and not as time goes by.
func (c *command) text(kind string) string {
	now := time.Now().Add(c.ahead)
	if c.id != "" {
		return render(kind+"machine", &c.machine, now)
	}
	return render(kind+"list", &c.list, now)
}

// follow shows the machine, or all, and then changes: a terminal is drawn anew, elsewhere each change is a line.
func (c *command) follow(ctx context.Context) error {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	said := map[string]bool{}
	for first := true; ; {
		var text string
		switch err := c.look(ctx); {
		case ctx.Err() != nil:
			return nil
		case statusOf(err) == exitUnheard && c.screen != nil:
			text = err.Error() + "\n"
		case statusOf(err) == exitUnheard:
			text = news(err.Error(), said)
		case err != nil:
			return err
		case first || c.screen != nil:
			text, first = c.text(""), false
			news(c.text("news of "), said)
		default:
			text = news(c.text("news of "), said)
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
	for decoder := json.NewDecoder(response.Body); ; {
		var event json.RawMessage
		if err := decoder.Decode(&event); ctx.Err() != nil {
			return nil
		} else if err != nil {
			return errors.New("the stream of events has ended")
		}
		if _, err := c.stdout.Write(append(event, '\n')); err != nil {
			return err
		}
	}
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
