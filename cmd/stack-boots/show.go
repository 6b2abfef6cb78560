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

	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
)

// answerTimeout is how long the admin port may take to answer.
const answerTimeout = 10 * time.Second

// exit is why show ends, with its exit status: 1 where stack-boots does not answer, or refuses, 2 where an argument is
// wrong, and exitUnheard where nothing was heard of the machine.
type exit struct {
	status int
	why    string
}

const exitUnheard = 4

// Error implements error.
func (e exit) Error() string { return e.why }

// show asks a running stack-boots, and prints what /boots shows: all machines, or one.
func show(args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	err := ask(args, getenv, cleanWriter{stdout}, stderr)
	if err == nil || errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err.Error() != "" {
		fmt.Fprintf(cleanWriter{stderr}, "%s show: %v\n", name, err)
	}
	e, _ := errors.AsType[exit](err)
	return max(e.status, 1)
}

func ask(args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet(name+" show", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "Usage: %s [MAC, address or name] [flags]\n", flags.Name())
		flags.PrintDefaults()
	}
	admin := cmp.Or(getenv(prefix+"_ADMIN_ADDRESS"), defaultAdmin)
	flags.StringVar(&admin, "admin", admin, "admin address of the running program")
	output, query, id := flags.String("o", "table", "table, or json"), url.Values{}, ""
	for key, usage := range map[string]string{
		"state": "only machines in these states, with commas between: stuck, failed, booting, quiet, installed, booted",
		"q":     "only machines with all these words in names, MACs, addresses, files or causes",
	} {
		flags.Func(key, usage, func(value string) error { query.Set(key, value); return nil })
	}
	for len(args) > 0 { // flags may follow the machine
		if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
			return err
		} else if err != nil {
			return exit{status: 2} // flags have told why
		}
		if args = flags.Args(); len(args) > 0 {
			if id != "" {
				return exit{2, fmt.Sprintf("unexpected argument %q: one machine at most", args[0])}
			}
			id, args = args[0], args[1:]
		}
	}
	if *output != "table" && *output != "json" {
		return exit{2, fmt.Sprintf("-o %q: neither table nor json", *output)}
	}
	host, port, err := net.SplitHostPort(admin)
	if err != nil {
		return fmt.Errorf("failed to parse admin address %q: %w", admin, err)
	}
	where := "http://" + net.JoinHostPort(cmp.Or(host, "localhost"), port) + "/api/v1/boots"
	if id != "" {
		where += "/" + url.PathEscape(id)
	}
	answer, err := get(where + "?" + query.Encode())
	if err != nil {
		return err
	}
	return write(stdout, answer, *output, id != "")
}

// get asks the admin port.
func get(where string) (answer json.RawMessage, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, where, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("failed to ask the admin port at %s: %w", request.URL.Host, err)
	}
	defer response.Body.Close()
	if response.StatusCode < http.StatusMultipleChoices {
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			return nil, fmt.Errorf("failed to read the answer: %w", err)
		}
		return answer, nil
	}
	var problem page.Problem
	_ = json.NewDecoder(io.LimitReader(response.Body, 1<<12)).Decode(&problem) // another program has no problem to tell
	switch unheard := response.StatusCode == http.StatusNotFound; {
	case problem.Detail == "" && unheard:
		return nil, errors.New("it shows no boots: it is another program")
	case unheard:
		return nil, exit{exitUnheard, problem.Detail}
	default:
		return nil, errors.New(cmp.Or(problem.Detail, response.Status))
	}
}

// write writes the API's answer, or its table.
func write(stdout io.Writer, answer json.RawMessage, output string, one bool) error {
	if output == "json" {
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(answer)
	}
	var m journal.MachineView
	var l page.List
	template, data := "list", any(&l)
	if one {
		template, data = "machine", &m
	}
	if err := json.Unmarshal(answer, data); err != nil {
		return fmt.Errorf("failed to read the answer: %w", err)
	}
	_, err := io.WriteString(stdout, render(template, data, cmp.Or(l.Now, time.Now())))
	return err
}
