package program

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Tinkerbell is the one binary and what it needs in a lab, as files.
type Tinkerbell struct {
	Version string // of its module
	Server  string // all services
	Agent   string // what a machine runs its workflow with; static
	API     string // the part of the Kubernetes API that the server keeps its objects in
}

// BuildTinkerbell builds Tinkerbell from its modules (test/e2e/tinkerbell), once for this machine: the result is kept
// in the user's cache, by what it is built from. It takes minutes.
func BuildTinkerbell(ctx context.Context, logf func(format string, args ...any)) (Tinkerbell, error) {
	repo, err := Repo()
	if err != nil {
		return Tinkerbell{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Tinkerbell{}, fmt.Errorf("failed to find the cache for Tinkerbell: %w", err)
	}
	module := filepath.Join(repo, "test", "e2e", "tinkerbell")
	key, err := sourcesOf(module)
	if err != nil {
		return Tinkerbell{}, err
	}
	dir := filepath.Join(cache, "tinkerbell-stack", "tinkerbell-"+key)
	err = locked(dir, func() error {
		if _, err := os.Stat(filepath.Join(dir, "whole")); err == nil {
			return nil
		}
		logf("building Tinkerbell, once for this machine (some minutes)")
		packages := []string{
			"github.com/tinkerbell/tinkerbell/cmd/tinkerbell", "github.com/tinkerbell/tinkerbell/cmd/agent", "./api",
		}
		err := Build(ctx, module, filepath.Join(dir, "whole.new"), packages, "-ldflags=-s -w")
		if err != nil {
			return err
		}
		return os.Rename(filepath.Join(dir, "whole.new"), filepath.Join(dir, "whole"))
	})
	if err != nil {
		return Tinkerbell{}, fmt.Errorf("failed to build Tinkerbell: %w", err)
	}
	dir = filepath.Join(dir, "whole")
	t := Tinkerbell{
		Server: filepath.Join(dir, "tinkerbell"), Agent: filepath.Join(dir, "agent"), API: filepath.Join(dir, "api"),
	}
	about, err := buildinfo.ReadFile(t.Server)
	if err != nil {
		return Tinkerbell{}, fmt.Errorf("failed to find out Tinkerbell's version: %w", err)
	}
	t.Version = about.Main.Version
	return t, nil
}

// sourcesOf is a short digest of a module's own files.
func sourcesOf(module string) (string, error) {
	hash := sha256.New()
	files, err := filepath.Glob(filepath.Join(module, "*", "*.go"))
	for _, file := range append(files, filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum")) {
		text, readErr := os.ReadFile(file)
		err = errors.Join(err, readErr)
		hash.Write(text)
	}
	if err != nil {
		return "", fmt.Errorf("failed to read module: %w", err)
	}
	return hex.EncodeToString(hash.Sum(nil))[:12], nil
}
