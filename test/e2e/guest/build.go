package guest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Build builds static programs of packages of the module in a directory, into another directory.
func Build(ctx context.Context, arch, module, out string, packages ...string) error {
	return build(ctx, arch, module, append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", out + "/"}, packages...))
}

// BuildTest builds a static program of the tests of a package of the module in a directory.
func BuildTest(ctx context.Context, arch, module, out, pkg string) error {
	return build(ctx, arch, module, []string{"test", "-c", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg})
}

func build(ctx context.Context, arch, module string, args []string) error {
	out := args[5]
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOWORK=off", "GOFLAGS=-buildvcs=false")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("failed to build %s: %w: %s", args[len(args)-1], err, strings.TrimSpace(string(said)))
	}
	return nil
}
