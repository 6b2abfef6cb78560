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

// client asks a running stack-boots, most often about one machine.
type client struct {
	admin string
	id    string // of the machine
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

// parse reads a command's arguments: flags may follow the machine. Over: the command ends with the exit status.
func (c *client) parse(flags *flag.FlagSet, args []string, needed bool) (code int, over bool) {
	for rest := args; len(rest) > 0; {
		if err := flags.Parse(rest); errors.Is(err, flag.ErrHelp) {
			return 0, true
		} else if err != nil {
			return 2, true
		}
		if rest = flags.Args(); len(rest) > 0 {
			if c.id != "" {
				fmt.Fprintf(flags.Output(), "%s: unexpected argument %q: one machine at most\n", flags.Name(), rest[0])
				return 2, true
			}
			c.id, rest = rest[0], rest[1:]
		}
	}
	if c.id == "" && needed {
		fmt.Fprintf(flags.Output(), "%s: no machine: its MAC or address is needed\n", flags.Name())
		return 2, true
	}
	return 0, false
}

// path is that of the machine.
func (c *client) path() string { return "/api/v1/boots/" + url.PathEscape(c.id) }

// refusal is an answer that is none.
type refusal struct {
	status int
	detail string
}

// Error implements error.
func (r *refusal) Error() string { return r.detail }

// ask asks the admin port. Its answer is to be closed.
func (c *client) ask(ctx context.Context, method, path string) (io.ReadCloser, error) {
	host, port, err := net.SplitHostPort(c.admin)
	if err != nil {
		return nil, fmt.Errorf("failed to parse admin address %q: %w", c.admin, err)
	}
	if host == "" {
		host = "localhost"
	}
	where := "http://" + net.JoinHostPort(host, port) + path
	if len(c.query) > 0 {
		where += "?" + c.query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, where, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("failed to ask the admin port at %s: %w", c.admin, err)
	}
	if response.StatusCode < http.StatusMultipleChoices {
		return response.Body, nil
	}
	defer response.Body.Close()
	var problem page.Problem
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<12))
	if json.Unmarshal(text, &problem) != nil || problem.Detail == "" {
		if problem.Detail = response.Status; response.StatusCode == http.StatusNotFound {
			problem.Detail = "it shows no boots: it is another program"
		}
	}
	return nil, &refusal{response.StatusCode, problem.Detail}
}

// acknowledge is the command that has a machine that failed count as failed no more.
func acknowledge(args []string, getenv func(string) string, _, stderr io.Writer) int {
	c := newClient(getenv)
	flags := c.flags("acknowledge", "<MAC or address>", stderr)
	if code, over := c.parse(flags, args, true); over {
		return code
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	body, err := c.ask(ctx, http.MethodPost, c.path()+"/acknowledge")
	if err != nil {
		fmt.Fprintf(&cleanWriter{w: stderr}, "%s: %v\n", flags.Name(), err)
		return 1
	}
	_ = body.Close()
	return 0
}
