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

// writeNotes writes a version's section of a changelog in the manner of Keep a Changelog, without its heading, and with links
// into that version's documents, since the notes stand elsewhere. A version without a section is an error: a release says what
// it changes. So are entries of the section Unreleased, which the tag has, too, and the notes would not.
func writeNotes(_ context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("notes", flag.ContinueOnError)
	changelog := flags.String("changelog", "CHANGELOG.md", "the changelog")
	version := flags.String("version", "", "the version, with or without \"v\"; Unreleased is the section of that name")
	if err := flags.Parse(args); err != nil {
		return err
	}
	text, err := os.ReadFile(*changelog)
	if err != nil {
		return err
	}
	section, err := notes(string(text), *version)
	if err != nil {
		return fmt.Errorf("failed to read %s: %w", *changelog, err)
	}
	if _, err := notes(string(text), "Unreleased"); err == nil && *version != "Unreleased" {
		return fmt.Errorf("%s has entries under [Unreleased]: move them into the section of %s", *changelog, *version)
	}
	_, err = io.WriteString(stdout, pinMarkdown(section, "", reference(*version, *version)))
	return err
}

func notes(changelog, version string) (string, error) {
	version = strings.TrimPrefix(version, "v")
	heading := regexp.MustCompile(`(?m)^## \[?` + regexp.QuoteMeta(version) + `\]?(?: - \d{4}-\d{2}-\d{2})?$`)
	at := heading.FindStringIndex(changelog)
	if at == nil {
		return "", fmt.Errorf("no section \"## [%s]\"", version)
	}
	section := changelog[at[1]:]
	if end := regexp.MustCompile(`(?m)^(?:## |\[[^\]]+\]: )`).FindStringIndex(section); end != nil {
		section = section[:end[0]]
	}
	if section = strings.TrimSpace(section); section == "" {
		return "", fmt.Errorf("section \"## [%s]\" is empty", version)
	}
	return section + "\n", nil
}
