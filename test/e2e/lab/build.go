package lab

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// binaries are the programs of the lab as files.
type binaries struct {
	repo                                 string
	broadcastInit, dhcpRelay, stackProxy string
	stackBoots                           string
	smee, hegel                          string
}

// Packages of the real services; their versions are those of go.mod.
const (
	smeePackage  = "github.com/tinkerbell/smee/cmd/smee"
	hegelPackage = "github.com/tinkerbell/hegel/cmd/hegel"
)

// build builds what the lab starts. Go's build cache makes a second call cheap.
func build(ctx context.Context, opts Options) (binaries, error) {
	repo, err := program.Repo()
	if err != nil {
		return binaries{}, err
	}
	dir := filepath.Join(repo, "build", "bin", "lab") // apart from what "make build" builds for release
	b := binaries{
		repo:          repo,
		broadcastInit: filepath.Join(dir, BroadcastInit),
		dhcpRelay:     filepath.Join(dir, DHCPRelay),
		stackProxy:    filepath.Join(dir, StackProxy),
		stackBoots:    filepath.Join(dir, StackBoots),
		smee:          filepath.Join(dir, Smee),
		hegel:         filepath.Join(dir, Hegel),
	}
	var own, services []string
	for _, name := range []string{BroadcastInit, StackBoots, DHCPRelay, StackProxy} {
		if !slices.Contains(opts.Without, name) && opts.Programs[name] == "" {
			own = append(own, "./cmd/"+name)
		}
	}
	for name, path := range map[string]*string{
		BroadcastInit: &b.broadcastInit, StackBoots: &b.stackBoots, DHCPRelay: &b.dhcpRelay, StackProxy: &b.stackProxy,
	} {
		if other := opts.Programs[name]; other != "" {
			*path = other
		}
	}
	if !opts.leavesOut(Smee) {
		services = append(services, smeePackage)
	}
	if !opts.leavesOut(Hegel) {
		services = append(services, hegelPackage)
	}
	if len(services) > 0 {
		opts.Logf("building %s (about two minutes the first time)", strings.Join(services, ", "))
		if err := program.Build(ctx, filepath.Join(repo, "test", "e2e"), dir, services); err != nil {
			return binaries{}, err
		}
	}
	if len(own) > 0 {
		opts.Logf("building %s", strings.Join(own, ", "))
		if err := program.Build(ctx, repo, dir, own); err != nil {
			return binaries{}, err
		}
	}
	return b, nil
}
