package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
)

// buildType names how the images come to be; the document at that address says what the parameters mean.
const buildType = "https://github.com/tinkerbell/stack/blob/main/docs/release.md#provenance"

// provenance is a SLSA v1 predicate, https://slsa.dev/spec/v1.0/provenance.
type provenance struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		ResolvedDependencies []dependency      `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder  map[string]string `json:"builder"`
		Metadata map[string]string `json:"metadata"`
	} `json:"runDetails"`
}

type dependency struct {
	URI    string            `json:"uri"`
	Digest map[string]string `json:"digest"`
}

// writeProvenance writes the predicate that is attested of every image.
func writeProvenance(_ context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("provenance", flag.ContinueOnError)
	source := flags.String("source", "", "the repository's address")
	revision := flags.String("revision", "", "the commit that was built")
	version := flags.String("version", "", "the version that was built")
	platforms := flags.String("platforms", "", "the platforms that were built")
	builder := flags.String("builder", "", "the address of who built: the workflow's, by its commit or tag")
	invocation := flags.String("invocation", "", "the address of the run")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !regexp.MustCompile(`^[0-9a-f]{40}$`).MatchString(*revision) {
		return fmt.Errorf("revision %q is no commit", *revision)
	}
	if *builder == "" {
		return errors.New("no -builder")
	}
	var p provenance
	p.BuildDefinition.BuildType = buildType
	p.BuildDefinition.ExternalParameters = map[string]string{"version": *version, "platforms": *platforms}
	p.BuildDefinition.ResolvedDependencies = []dependency{
		{URI: "git+" + *source, Digest: map[string]string{"gitCommit": *revision}},
	}
	p.RunDetails.Builder = map[string]string{"id": *builder}
	p.RunDetails.Metadata = map[string]string{"invocationId": *invocation}
	encoder := json.NewEncoder(stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(p)
}

// chartDigest is where "helm push" says what it pushed.
var chartDigest = regexp.MustCompile(`(?m)^Pushed: (\S+):(\S+)\r?\nDigest: (sha256:[0-9a-f]{64})$`)

// listArtifacts writes a line for everything that is signed: what it is, repository@digest, and the SBOM or "-".
func listArtifacts(_ context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("artifacts", flag.ContinueOnError)
	list := flags.String("list", "", "the list of images")
	push := flags.String("chart", "", "what \"helm push\" wrote")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var images map[string]pushed
	if err := readJSON(*list, &images); err != nil {
		return err
	}
	for _, program := range slices.Sorted(maps.Keys(images)) {
		image := images[program]
		fmt.Fprintf(stdout, "image %s@%s %s\n", image.Repository, image.Digest, image.SBOM)
	}
	text, err := os.ReadFile(*push)
	if err != nil {
		return err
	}
	match := chartDigest.FindSubmatch(bytes.TrimSpace(text))
	if match == nil {
		return fmt.Errorf("%s does not say which digest was pushed", *push)
	}
	fmt.Fprintf(stdout, "chart %s@%s -\n", match[1], match[3])
	return nil
}
