// Command images builds the stack's container images with the Go toolchain alone: no daemon, no base image.
//
// For each program it writes build/images/<program>.tar, an OCI archive with one image per platform, and
// build/images/<program>.spdx.json, the modules in its binaries. The same commit gives the same digests.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// heaviest is the most that an image may weigh, as stored: a Raspberry Pi pulls it over a home's line.
const heaviest = 20 << 20

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "images: %v\n", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

// options are what the command line says.
type options struct {
	root, out           string
	programs, platforms []string
	repository, version string
	revision            string
	created             time.Time
}

func parse(args []string) (options, error) {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	var (
		o         options
		programs  = flags.String("programs", "", "the programs, separated by commas")
		platforms = flags.String("platforms", "linux/amd64,linux/arm64", "the platforms, separated by commas")
		epoch     = flags.Int64("epoch", 0, "the time of everything in the images, in Unix seconds")
	)
	flags.StringVar(&o.root, "root", "..", "the root module's directory")
	flags.StringVar(&o.out, "out", "../build/images", "where the archives go")
	flags.StringVar(&o.repository, "repository", "localhost/tinkerbell/stack",
		"what stands before the program in an image's name")
	flags.StringVar(&o.version, "version", "unknown", "the version, which is the tag too")
	flags.StringVar(&o.revision, "revision", "unknown", "the commit")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if *programs == "" {
		return o, errors.New("no -programs")
	}
	o.programs, o.platforms = strings.Split(*programs, ","), strings.Split(*platforms, ",")
	o.created = time.Unix(*epoch, 0).UTC()
	return o, nil
}

func run(args []string, stdout io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "images")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "IMAGE\tPLATFORM\tMiB\tDIGEST")
	for _, program := range o.programs {
		var builds []build
		for _, platform := range o.platforms {
			b, err := o.build(work, program, platform)
			if err != nil {
				return err
			}
			builds = append(builds, b)
		}
		if err := o.writeSBOM(program, builds); err != nil {
			return err
		}
		name := o.repository + "/" + program + ":" + o.version
		index, err := o.writeArchive(name, program, builds)
		if err != nil {
			return err
		}
		for _, b := range builds {
			weight, digest, err := weigh(b.image)
			if err != nil {
				return err
			}
			if weight > heaviest {
				return fmt.Errorf("%s for %s weighs %.1f MiB, more than %d", program, b.platform,
					float64(weight)/(1<<20), heaviest>>20)
			}
			fmt.Fprintf(table, "%s\t%s\t%.1f\t%s\n", name, b.platform, float64(weight)/(1<<20), digest)
		}
		fmt.Fprintf(table, "%s\tindex\t\t%s\n", name, index)
	}
	return table.Flush()
}

// weigh is what an image occupies in a registry: its layers as stored, and its configuration.
func weigh(image v1.Image) (int64, v1.Hash, error) {
	manifest, err := image.Manifest()
	if err != nil {
		return 0, v1.Hash{}, err
	}
	total := manifest.Config.Size
	for _, layer := range manifest.Layers {
		total += layer.Size
	}
	digest, err := image.Digest()
	return total, digest, err
}

// path is a file in the output directory.
func (o options) path(name string) string { return filepath.Join(o.out, name) }
