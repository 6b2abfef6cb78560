package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/tinkerbell/stack/pkg/boot/page"
)

// answerTimeout is how long the admin port may take to answer.
const answerTimeout = 10 * time.Second

// exit is why a command ends, with its exit status: 1 where stack-boots refuses, 2 where an argument is wrong, and
// those below. The status of any other error is 1.
type exit struct {
	status int
	why    string
}

// exitUnheard is the exit status where nothing was heard of the machine.
const exitUnheard = 4

// Error implements error.
func (e exit) Error() string { return e.why }

// statusOf is the exit status of a command that ended with an error, or without one.
func statusOf(err error) int {
	var e exit
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &e):
		return e.status
	default:
		return 1
	}
}

// client asks a running stack-boots, most often about one machine.
type client struct {
	admin string
	id    string // of the machine: MAC, address or name
	query url.Values
}

func newClient(getenv func(string) string) client {
	return client{admin: cmp.Or(getenv(prefix+"_ADMIN_ADDRESS"), defaultAdmin), query: url.Values{}}
}

// flags are those of a command that asks.
func (c *client) flags(command, about string, stderr io.Writer) *flag.FlagSet {
	flags := flag.NewFlagSet(name+" "+command, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "Usage: %s %s [flags]\n", flags.Name(), about)
		flags.PrintDefaults()
	}
	flags.StringVar(&c.admin, "admin", c.admin, "admin address of the running program")
	return flags
}

// parse reads a command's arguments: flags may follow the machine.
func (c *client) parse(flags *flag.FlagSet, args []string, needed bool) error {
	for len(args) > 0 {
		if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
			return err
		} else if err != nil {
			return exit{status: 2} // flags have told why
		}
		if args = flags.Args(); len(args) > 0 {
			if c.id != "" {
				return exit{2, fmt.Sprintf("unexpected argument %q: one machine at most", args[0])}
			}
			c.id, args = args[0], args[1:]
		}
	}
	if c.id == "" && needed {
		return exit{2, "no machine: its MAC, address or name is needed"}
	}
	return nil
}

// path is that of the machine, or of all.
func (c *client) path() string {
	if c.id == "" {
		return "/api/v1/boots"
	}
	return "/api/v1/boots/" + url.PathEscape(c.id)
}

// get asks for the machine, or for all.
func (c *client) get(ctx context.Context, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	response, err := c.ask(ctx, c.path())
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("failed to read the answer: %w", err)
	}
	return nil
}

// ask asks the admin port. The answer's body is to be closed.
func (c *client) ask(ctx context.Context, path string) (*http.Response, error) {
	host, port, err := net.SplitHostPort(c.admin)
	if err != nil {
		return nil, fmt.Errorf("failed to parse admin address %q: %w", c.admin, err)
	}
	where := "http://" + net.JoinHostPort(cmp.Or(host, "localhost"), port) + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.URL.RawQuery = c.query.Encode()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("failed to ask the admin port at %s: %w", c.admin, err)
	}
	if response.StatusCode < http.StatusMultipleChoices {
		return response, nil
	}
	defer response.Body.Close()
	var problem page.Problem
	_ = json.NewDecoder(io.LimitReader(response.Body, 1<<12)).Decode(&problem) // another program has no problem to tell
	switch unheard := response.StatusCode == http.StatusNotFound; {
	case problem.Detail == "" && unheard:
		return nil, errors.New("it shows no boots: it is another program")
	case unheard:
		return nil, exit{exitUnheard, problem.Detail}
	default:
		return nil, exit{1, cmp.Or(problem.Detail, response.Status)}
	}
}
