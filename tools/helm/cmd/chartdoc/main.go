// Command chartdoc makes a chart's values.schema.json, files/defaults.json and the table of values in its README.md from
// values.yaml.
//
// A key's comment is
//
//	# -- What it is for.
//	# @schema {enum: [a, b]}
//
// and a comment without the dashes describes a group. The type comes from the default; @schema adds what the default
// does not tell, over as many lines as the comment goes on. "use: name" takes a piece of schema.defs.yaml.
package main

//go:generate go run . ../../../../charts/stack

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "chartdoc: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("chartdoc", flag.ContinueOnError)
	check := flags.Bool("check", false, "write nothing, and fail where a file is out of date")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("usage: chartdoc [-check] <chart>")
	}
	c, err := load(flags.Arg(0))
	if err != nil {
		return err
	}
	files, err := c.files()
	if err != nil {
		return err
	}
	for _, name := range []string{schemaFile, readmeFile, defaultsFile} {
		path := filepath.Join(c.directory, name)
		have, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
		switch {
		case bytes.Equal(have, files[name]):
		case *check:
			return fmt.Errorf("%s is out of date: run make chart-docs", path)
		default:
			if err := os.WriteFile(path, files[name], 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}
