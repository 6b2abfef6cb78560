package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// writeCommands writes the commands by which a document installs the chart from a registry of the reader's own: the
// first block of commands below the heading "Installing it". Comments and blank lines are left out, nothing else.
func writeCommands(_ context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("installing", flag.ContinueOnError)
	document := flags.String("document", "README.md", "the document")
	if err := flags.Parse(args); err != nil {
		return err
	}
	text, err := os.ReadFile(*document)
	if err != nil {
		return err
	}
	list, err := commands(string(text))
	if err != nil {
		return fmt.Errorf("failed to read %s: %w", *document, err)
	}
	for _, command := range list {
		fmt.Fprintln(stdout, command)
	}
	return nil
}

var installing = regexp.MustCompile("(?ms)^## Installing it$.*?^```sh$\n(.*?)^```$")

// commands are one line each: a line that goes on with a backslash is joined.
func commands(document string) ([]string, error) {
	match := installing.FindStringSubmatch(document)
	if match == nil {
		return nil, fmt.Errorf("no block of commands below \"## Installing it\"")
	}
	var list []string
	for _, line := range strings.Split(strings.ReplaceAll(match[1], "\\\n", " "), "\n") {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			list = append(list, line)
		}
	}
	return list, nil
}
