package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// pushed is an image, or the chart, as a registry has it.
type pushed struct {
	Repository string `json:"repository"` // registry and path, without tag
	Tag        string `json:"tag"`
	Digest     string `json:"digest"` // of an image: its index
	SBOM       string `json:"sbom,omitempty"`
}

// pushImages pushes every archive of a directory, and writes the list of what it pushed, by program.
func pushImages(ctx context.Context, args []string, stdout io.Writer) error {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	from := flags.String("from", "", "the directory of the archives, <program>.tar, and of <program>.spdx.json")
	repository := flags.String("repository", "", "registry and path, to which the program's name is added")
	tag := flags.String("tag", "", "the tag beside the digest")
	list := flags.String("list", "", "the file to write the list to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(*from, "*.tar"))
	if err != nil {
		return err
	}
	if len(archives) == 0 {
		return fmt.Errorf("no archives in %s: run \"make images\"", *from)
	}
	images := make(map[string]pushed)
	for _, archive := range archives {
		program := strings.TrimSuffix(filepath.Base(archive), ".tar")
		image := pushed{
			Repository: *repository + "/" + program, Tag: *tag,
			SBOM: filepath.Join(*from, program+".spdx.json"),
		}
		if _, err := os.Stat(image.SBOM); err != nil {
			return fmt.Errorf("failed to find the SBOM of %s: %w", program, err)
		}
		digest, err := pushArchive(ctx, archive, image.Repository+":"+*tag)
		if err != nil {
			return fmt.Errorf("failed to push %s: %w", archive, err)
		}
		image.Digest = digest.String()
		images[program] = image
		fmt.Fprintf(stdout, "%s@%s\n", image.Repository, image.Digest)
	}
	return writeJSON(*list, images)
}

// pushArchive pushes an archive's one index under a tag.
func pushArchive(ctx context.Context, archive, reference string) (v1.Hash, error) {
	tag, err := name.NewTag(reference)
	if err != nil {
		return v1.Hash{}, err
	}
	directory, err := os.MkdirTemp("", "release")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.RemoveAll(directory)
	if err := untar(archive, directory); err != nil {
		return v1.Hash{}, err
	}
	top, err := layout.ImageIndexFromPath(directory)
	if err != nil {
		return v1.Hash{}, err
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		return v1.Hash{}, err
	}
	if len(manifest.Manifests) != 1 {
		return v1.Hash{}, fmt.Errorf("it has %d images, not one", len(manifest.Manifests))
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		return v1.Hash{}, err
	}
	err = remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	return manifest.Manifests[0].Digest, err
}

// untar unpacks directories and regular files.
func untar(archive, directory string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	root, err := os.OpenRoot(directory)
	if err != nil {
		return err
	}
	defer root.Close()
	for r := tar.NewReader(file); ; {
		header, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case header.Typeflag == tar.TypeDir:
			err = root.MkdirAll(filepath.Clean(header.Name), 0o755)
		case header.Typeflag == tar.TypeReg:
			err = write(root, header.Name, r)
		}
		if err != nil {
			return err
		}
	}
}

func write(root *os.Root, path string, content io.Reader) error {
	file, err := root.Create(path)
	if err != nil {
		return err
	}
	if _, err := io.Copy(file, content); err != nil {
		_ = file.Close()
		return err
	}
	return file.Close()
}

func writeJSON(file string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

func readJSON(file string, value any) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, value); err != nil {
		return fmt.Errorf("failed to read %s: %w", file, err)
	}
	return nil
}
