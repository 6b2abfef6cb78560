package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tinkerbell/stack/pkg/lb"
)

// statusPath is where the admin port shows the addresses.
const statusPath = "/addresses"

// statusTimeout bounds the question.
const statusTimeout = 5 * time.Second

// status asks a running stack-lb.
func status(args []string, defaultAddress string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("stack-lb status", flag.ContinueOnError)
	flags.SetOutput(stderr)
	output := flags.String("o", "table", "how to print it: table or json")
	address := flags.String("admin", defaultAddress, "admin address of the running stack-lb")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || *output != "table" && *output != "json" {
		fmt.Fprintln(stderr, "stack-lb status: usage: stack-lb status [-o table|json] [-admin ADDRESS]")
		return 2
	}
	views, err := ask(*address)
	if err == nil {
		err = show(stdout, views, *output)
	}
	if err != nil {
		fmt.Fprintf(stderr, "stack-lb status: %v\n", err)
		return 1
	}
	return 0
}

func ask(address string) ([]lb.View, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("failed to read admin address %q: %w", address, err)
	}
	host = cmp.Or(host, "localhost")
	client := &http.Client{Timeout: statusTimeout}
	url := "http://" + net.JoinHostPort(host, port) + statusPath
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("failed to read admin address %q: %w", address, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("failed to ask the running stack-lb: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("failed to ask the running stack-lb: it answers %s", response.Status)
	}
	var views []lb.View
	if err := json.NewDecoder(response.Body).Decode(&views); err != nil {
		return nil, fmt.Errorf("failed to read the answer of %s: %w", address, err)
	}
	return views, nil
}

func show(w io.Writer, views []lb.View, output string) error {
	if output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(views)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ADDRESS\tLINK\tHERE\tHOLDER\tREASON\tANSWERED BY\tSERVICES")
	dash := func(text string) string {
		if text == "" {
			return "-"
		}
		return text
	}
	for _, v := range views {
		fmt.Fprintf(table, "%s\t%s\t%v\t%s\t%s\t%s\t%s\n", v.Address, dash(v.Link), v.Announced, dash(v.Holder), v.Reason,
			dash(strings.Join(v.Answers, ",")), strings.Join(v.Services, ","))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, v := range views {
		if v.Message != "" {
			fmt.Fprintf(w, "%s: %s\n", v.Address, v.Message)
		}
	}
	return nil
}
