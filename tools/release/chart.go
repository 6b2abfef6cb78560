package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// makeChart copies the chart as it is packaged: of a version, with links into that version's documents, with what changed,
// and with default images that are those that were pushed, by digest, so that it is installed without a word about images.
// The package beside the copy, stack-<version>.tgz, has the same bytes whenever and wherever it is made of one commit.
func makeChart(_ context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("chart", flag.ContinueOnError)
	from := flags.String("from", "", "the chart's directory")
	to := flags.String("to", "", "where the copy goes; it is replaced")
	version := flags.String("version", "", "the programs' version: a release's tag, or what \"git describe\" says")
	commit := flags.String("commit", "", "the commit")
	count := flags.Int("count", 0, "how many commits there are up to it")
	epoch := flags.Int64("epoch", 0, "its time, in seconds since 1970, which the package's files have")
	changelog := flags.String("changelog", "CHANGELOG.md", "the changelog")
	list := flags.String("list", "", "the list of images; without it the chart names those that its values name")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var images map[string]pushed
	if *list != "" {
		if err := readJSON(*list, &images); err != nil {
			return err
		}
	}
	for _, step := range []func() error{
		func() error { return os.RemoveAll(*to) },
		func() error { return os.CopyFS(*to, os.DirFS(*from)) },
		func() error { return dropIgnored(*to) },
		func() error {
			if images == nil {
				return nil
			}
			at, err := publishedAt(images)
			if err != nil {
				return err
			}
			return writeJSON(filepath.Join(*to, "files", "images.json"), at)
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	var chart string
	if err := edit(filepath.Join(*to, "Chart.yaml"), func(text string) (string, error) {
		own := field(text, "version")
		changes, err := changesOf(*changelog, own)
		if err != nil {
			return "", err
		}
		if chart, err = chartVersion(own, *version, *count, *commit); err != nil {
			return "", err
		}
		return withVersion(text, chart, *version, images, changes)
	}); err != nil {
		return err
	}
	if err := pinLinks(*to, reference(*version, *commit)); err != nil {
		return err
	}
	archive := filepath.Join(filepath.Dir(*to), "stack-"+chart+".tgz")
	if err := packChart(*to, archive, time.Unix(*epoch, 0).UTC()); err != nil {
		return fmt.Errorf("failed to write %s: %w", archive, err)
	}
	fmt.Fprintln(stdout, archive)
	return nil
}

func edit(file string, change func(string) (string, error)) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed, err := change(string(text))
	if err != nil {
		return fmt.Errorf("failed to change %s: %w", file, err)
	}
	return os.WriteFile(file, []byte(changed), 0o644)
}

// published is what the chart says of the images that were pushed with it.
type published struct {
	Registry   string            `json:"registry"`
	Repository string            `json:"repository"`
	Digests    map[string]string `json:"digests"`
}

// publishedAt finds what images have in common.
func publishedAt(images map[string]pushed) (published, error) {
	at := published{Digests: map[string]string{}}
	for _, program := range slices.Sorted(maps.Keys(images)) {
		image := images[program]
		common, ok := strings.CutSuffix(image.Repository, "/"+program)
		registry, path, separate := strings.Cut(common, "/")
		if !separate {
			return at, fmt.Errorf("%q is not a registry and a path", common)
		}
		if !ok || len(at.Digests) > 0 && (registry != at.Registry || path != at.Repository) {
			return at, fmt.Errorf("%s is not beside the other images", image.Repository)
		}
		at.Registry, at.Repository, at.Digests[program] = registry, path, image.Digest
	}
	return at, nil
}

// withVersion sets version and appVersion in Chart.yaml and the annotations that Artifact Hub reads: whether it is a
// candidate, the images and the changes.
func withVersion(text, version, programs string, images map[string]pushed, changes []change) (string, error) {
	set := func(key, value string) error {
		line := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(key) + `: .*$`)
		if !line.MatchString(text) {
			return fmt.Errorf("it has no %s", key)
		}
		text = line.ReplaceAllLiteralString(text, key+`: "`+value+`"`)
		return nil
	}
	for _, line := range [][2]string{
		{"version", version}, {"appVersion", programs},
		{"  artifacthub.io/prerelease", strconv.FormatBool(strings.Contains(version, "-"))},
	} {
		if err := set(line[0], line[1]); err != nil {
			return "", err
		}
	}
	var lines strings.Builder
	lines.WriteString("\nannotations:\n")
	if len(images) > 0 {
		lines.WriteString("  artifacthub.io/images: |\n")
	}
	for _, program := range slices.Sorted(maps.Keys(images)) {
		fmt.Fprintf(&lines, "    - name: %s\n      image: %s:%s@%s\n      platforms: [linux/amd64, linux/arm64]\n",
			program, images[program].Repository, images[program].Tag, images[program].Digest)
	}
	lines.WriteString("  artifacthub.io/changes: |\n")
	for _, change := range changes {
		fmt.Fprintf(&lines, "    - kind: %s\n      description: %q\n", change.kind, change.description)
	}
	before, after, found := strings.Cut(text, "\nannotations:\n")
	if !found {
		return "", fmt.Errorf("it has no annotations")
	}
	return before + lines.String() + after, nil
}
