package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/artifacts/fetch"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/route"
)

// fetchOnce is the command that brings the OS files up to date and exits: an init container, or a machine that
// prepares a volume for one without a network.
func fetchOnce(args []string, stderr io.Writer) int {
	var c config
	flags := flag.NewFlagSet(name+" fetch", flag.ContinueOnError)
	flags.SetOutput(stderr)
	file := flags.String("f", "", "what to fetch, in YAML; default what "+prefix+"_ARTIFACTS_FILE says")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if err := daemon.ParseEnv(prefix, &c); err != nil {
		fmt.Fprintf(stderr, "%s: failed to read settings: %v\n", name, err)
		return 1
	}
	if *file != "" {
		c.ArtifactsFile = *file
	}
	if c.ArtifactsFile == "" {
		fmt.Fprintf(stderr, "%s: fetch needs -f FILE or %s_ARTIFACTS_FILE\n", name, prefix)
		return 2
	}
	log := c.OpenLog(stderr)
	defer log.Close()
	ctx, restore := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer restore()
	f, err := c.fetcher(log.Logger, nil)
	if err == nil {
		err = f.Once(ctx)
	}
	if err != nil {
		log.Logger.Error("failed to fetch", "error", err)
		return 1
	}
	return 0
}

// artifacts reads what to fetch.
func (c *config) artifacts() (fetch.Config, error) {
	text, err := os.ReadFile(c.ArtifactsFile)
	if err != nil {
		return fetch.Config{}, fmt.Errorf("failed to read artifacts file: %w", err)
	}
	wanted, err := fetch.Parse(text)
	if err != nil {
		return wanted, fmt.Errorf("failed to parse artifacts file %s:\n%w", c.ArtifactsFile, err)
	}
	return wanted, nil
}

// fetcher makes the task that keeps the OS files up to date; nil where nothing is to be fetched. The volume's current
// files are served then.
func (c *config) fetcher(logger *slog.Logger, registry prometheus.Registerer) (*fetch.Fetcher, error) {
	if c.ArtifactsFile == "" {
		return nil, nil
	}
	wanted, err := c.artifacts()
	if err != nil {
		return nil, err
	}
	options := fetch.Options{Logger: logger}
	if registry != nil {
		options.Metrics = fetch.NewMetrics(registry)
	}
	f, err := fetch.New(wanted, options)
	if err != nil {
		return nil, err
	}
	if c.FilesDirectory == wanted.Volume {
		c.FilesDirectory = f.Directory()
	}
	return f, nil
}

// sayMissing logs which directories of files are not there. The one that is fetched into comes with its first files.
func (c *config) sayMissing(t route.Table, logger *slog.Logger) {
	for _, r := range t.Routes {
		if r.Protocol != route.Files || c.ArtifactsFile != "" && r.Files.Directory == c.FilesDirectory {
			continue
		}
		if _, err := os.Stat(r.Files.Directory); err != nil {
			logger.Warn("files are not there", "route", r.Name, "directory", r.Files.Directory, "error", err)
		}
	}
}

// background is a fetcher that does not keep the process unready, or not for long: a release that is gone must not take
// DHCP and metadata down with it. Its states are metrics, and on /artifacts.
type background struct {
	*fetch.Fetcher
	until time.Time // until then other replicas serve while this one has no files
}

// Ready implements daemon.Task.
func (b background) Ready() error {
	if time.Now().Before(b.until) {
		return b.Fetcher.Ready()
	}
	return nil
}
