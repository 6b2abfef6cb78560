// Command release makes a release's parts out of what "make images" and "helm package" made:
//
//	release images     pushes the images of build/images by digest and lists them
//	release chart      makes the chart that names those images by their digests
//	release provenance writes what was built from what, as SLSA v1 has it
//	release artifacts  lists what is to be signed: repository@digest, kind, its SBOM
//	release notes      writes a version's section of CHANGELOG.md
//	release installing writes the commands by which README.md installs the chart
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

// verbs are what the command does, by name; each takes its own flags.
var verbs = map[string]func(ctx context.Context, args []string, stdout io.Writer) error{
	"images":     pushImages,
	"chart":      makeChart,
	"provenance": writeProvenance,
	"artifacts":  listArtifacts,
	"notes":      writeNotes,
	"installing": writeCommands,
}

func run(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errors.New("no verb: images, chart, provenance, artifacts, notes or installing")
	}
	verb, ok := verbs[args[0]]
	if !ok {
		return fmt.Errorf("no verb %q: images, chart, provenance, artifacts, notes or installing", args[0])
	}
	return verb(ctx, args[1:], stdout)
}
