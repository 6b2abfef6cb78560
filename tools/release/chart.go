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
	"strings"
)

// semver is the version of a release, or of a candidate for one. What "git describe" says of a commit is neither.
var semver = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+(?:-(?:alpha|beta|rc)[0-9.]*)?)$`)

// makeChart copies the chart and makes the copy's default images those that were pushed, by digest, so that it is
// installed without a word about images.
func makeChart(_ context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("chart", flag.ContinueOnError)
	from := flags.String("from", "", "the chart's directory")
	to := flags.String("to", "", "where the copy goes; it is replaced")
	version := flags.String("version", "", "the version: the chart's own, where it is a semantic one, and the programs'")
	list := flags.String("list", "", "the list of images")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var images map[string]pushed
	if err := readJSON(*list, &images); err != nil {
		return err
	}
	if err := os.RemoveAll(*to); err != nil {
		return err
	}
	if err := os.CopyFS(*to, os.DirFS(*from)); err != nil {
		return err
	}
	if err := edit(filepath.Join(*to, "values.yaml"), func(text string) (string, error) {
		return withImages(text, images)
	}); err != nil {
		return err
	}
	if err := edit(filepath.Join(*to, "Chart.yaml"), func(text string) (string, error) {
		return withVersion(text, *version, images)
	}); err != nil {
		return err
	}
	fmt.Fprintln(stdout, *to)
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

// withImages sets image.registry, image.repository and image.digests in values.yaml, comments kept.
func withImages(values string, images map[string]pushed) (string, error) {
	start := strings.Index(values, "\nimage:\n")
	if start < 0 {
		return "", fmt.Errorf("it has no image")
	}
	start++
	head, block := values[:start], values[start:]
	set := func(key, value string) error {
		line := regexp.MustCompile(`(?m)^( +` + regexp.QuoteMeta(key) + `:) .*$`)
		at := line.FindStringSubmatchIndex(block)
		if at == nil {
			return fmt.Errorf("image has no %s", key)
		}
		block = block[:at[3]] + ` "` + value + `"` + block[at[1]:]
		return nil
	}
	var common string
	for _, program := range slices.Sorted(maps.Keys(images)) {
		image := images[program]
		repository, ok := strings.CutSuffix(image.Repository, "/"+program)
		if !ok || common != "" && repository != common {
			return "", fmt.Errorf("%s is not beside the other images", image.Repository)
		}
		common = repository
		if err := set(program, image.Digest); err != nil {
			return "", err
		}
	}
	registry, path, ok := strings.Cut(common, "/")
	if !ok {
		return "", fmt.Errorf("%q is not a registry and a path", common)
	}
	if err := set("registry", registry); err != nil {
		return "", err
	}
	if err := set("repository", path); err != nil {
		return "", err
	}
	return head + block, nil
}

// withVersion sets version and appVersion in Chart.yaml and adds the list of images as Artifact Hub reads it. A version
// that is no semantic one, such as a commit, is only the programs'.
func withVersion(chart, version string, images map[string]pushed) (string, error) {
	set := func(key, value string) error {
		line := regexp.MustCompile(`(?m)^` + key + `: .*$`)
		if !line.MatchString(chart) {
			return fmt.Errorf("it has no %s", key)
		}
		chart = line.ReplaceAllLiteralString(chart, key+`: "`+value+`"`)
		return nil
	}
	if match := semver.FindStringSubmatch(version); match != nil {
		if err := set("version", match[1]); err != nil {
			return "", err
		}
	}
	if err := set("appVersion", version); err != nil {
		return "", err
	}
	if !strings.Contains(chart, "\nannotations:\n") {
		return "", fmt.Errorf("it has no annotations")
	}
	lines := "annotations:\n  artifacthub.io/images: |\n"
	for _, program := range slices.Sorted(maps.Keys(images)) {
		lines += fmt.Sprintf("    - name: %s\n      image: %s:%s@%s\n      platforms: [linux/amd64, linux/arm64]\n",
			program, images[program].Repository, images[program].Tag, images[program].Digest)
	}
	return strings.Replace(chart, "annotations:\n", lines, 1), nil
}
