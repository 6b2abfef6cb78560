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

// exitUnheard is the exit status where nothing was heard of the machine; 1 is of a program that does not answer.
const exitUnheard = 4

// client asks a running stack-boots, most often about one machine.
type client struct {
	admin string
	id    string // of the machine: MAC, address or name
	query url.Values
	tag   string // of the last answer
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
		fmt.Fprintf(flags.Output(), "%s: no machine: its MAC, address or name is needed\n", flags.Name())
		return 2, true
	}
	return 0, false
}

// path is that of the machine, or of all.
func (c *client) path() string {
	if c.id == "" {
		return "/api/v1/boots"
	}
	return "/api/v1/boots/" + url.PathEscape(c.id)
}

// refusal is an answer that is none.
type refusal struct {
	status int
	detail string
}

// Error implements error.
func (r *refusal) Error() string { return r.detail }

// unheard reports whether the answer was that nothing was heard of the machine.
func unheard(err error) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.status == http.StatusNotFound
}

// fail tells why a command fails, and returns its exit status.
func fail(flags *flag.FlagSet, err error) int {
	fmt.Fprintf(&cleanWriter{w: flags.Output()}, "%s: %v\n", flags.Name(), err)
	if unheard(err) {
		return exitUnheard
	}
	return 1
}

// get asks for the machine, or for all, and reports whether the answer is another one than before.
func (c *client) get(ctx context.Context, answer any) (fresh bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	response, err := c.ask(ctx, http.MethodGet, c.path())
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	c.tag = response.Header.Get("ETag")
	if response.StatusCode == http.StatusNotModified {
		return false, nil
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return false, fmt.Errorf("failed to read the answer: %w", err)
	}
	return true, nil
}

// ask asks the admin port. The answer's body is to be closed.
func (c *client) ask(ctx context.Context, method, path string) (*http.Response, error) {
	host, port, err := net.SplitHostPort(c.admin)
	if err != nil {
		return nil, fmt.Errorf("failed to parse admin address %q: %w", c.admin, err)
	}
	where := "http://" + net.JoinHostPort(cmp.Or(host, "localhost"), port) + path
	request, err := http.NewRequestWithContext(ctx, method, where, http.NoBody)
	if err != nil {
		return nil, err
	}
	request.URL.RawQuery = c.query.Encode()
	request.Header.Set("If-None-Match", c.tag)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("failed to ask the admin port at %s: %w", c.admin, err)
	}
	if response.StatusCode < http.StatusMultipleChoices || response.StatusCode == http.StatusNotModified {
		return response, nil
	}
	defer response.Body.Close()
	var problem page.Problem
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<12))
	if json.Unmarshal(text, &problem) == nil && problem.Detail != "" {
		return nil, &refusal{response.StatusCode, problem.Detail}
	}
	if response.StatusCode == http.StatusNotFound {
		return nil, errors.New("it shows no boots: it is another program")
	}
	return nil, &refusal{response.StatusCode, response.Status}
}

// acknowledge is the command that has a machine that failed count as failed no more.
func acknowledge(args []string, getenv func(string) string, _, stderr io.Writer) int {
	c := newClient(getenv)
	flags := c.flags("acknowledge", "<MAC, address or name>", stderr)
	if code, over := c.parse(flags, args, true); over {
		return code
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	response, err := c.ask(ctx, http.MethodPost, c.path()+"/acknowledge")
	if err != nil {
		return fail(flags, err)
	}
	_ = response.Body.Close()
	return 0
}
