package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
)

// command is the boots page in a terminal.
type command struct {
	client
	stdout io.Writer
}

// show is the command that shows what /boots does: all machines, or one.
func show(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	c := command{client: newClient(getenv), stdout: cleanWriter{stdout}}
	flags := c.flags("show", "[MAC, address or name]", stderr)
	output := flags.String("o", "table", "table, or json")
	for key, usage := range map[string]string{
		"state": "only machines in these states, with commas between: stuck, failed, booting, quiet, installed, booted",
		"q":     "only machines with all these words in names, MACs, addresses, files or causes",
	} {
		flags.Func(key, usage, func(value string) error { c.query.Set(key, value); return nil })
	}
	if err := c.parse(flags, args, false); err != nil {
		return err
	}
	switch *output {
	case "table":
		return c.table(ctx)
	case "json":
		var answer json.RawMessage
		if err := c.get(ctx, &answer); err != nil {
			return err
		}
		encoder := json.NewEncoder(c.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	}
	return exit{2, fmt.Sprintf("-o %q: neither table nor json", *output)}
}

// table shows the machine, or all.
func (c *command) table(ctx context.Context) error {
	var m journal.MachineView
	var l page.List
	text := func() string { return render("list", &l, l.Now) }
	answer := any(&l)
	if c.id != "" {
		text, answer = func() string { return render("machine", &m, time.Now()) }, &m
	}
	if err := c.get(ctx, answer); err != nil {
		return err
	}
	_, err := io.WriteString(c.stdout, text())
	return err
}
