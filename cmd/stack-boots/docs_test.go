package main

import (
	"flag"
	"os"
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/envdoc"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/hardware"
	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/report"
	"github.com/tinkerbell/stack/pkg/daemon"
)

var update = flag.Bool("update", false, "write the generated parts of the document anew")

// The variables and metrics in the document are those of the program. "make generate" writes them.
func TestDocumentAgreesWithCode(t *testing.T) {
	registry := prometheus.NewRegistry()
	hardware.NewMetrics(registry)
	report.New(report.Options{Registry: registry})
	count(registry, &feed.Receiver{}, journal.New(journal.Options{}))
	envdoc.Check(t, "../../docs/reference/stack-boots.md", *update, map[string]string{
		"variables": envdoc.Table(prefix, reflect.TypeFor[settings]()),
		"metrics":   envdoc.Metrics(registry, "stack_boot_"),
	})
}

// TestSettingsForHostsAreTaken: commands of docs/without-kubernetes.md, and the units of docs/examples/host.
func TestSettingsForHostsAreTaken(t *testing.T) {
	envdoc.CheckSettings(t, "../../docs/without-kubernetes.md", "../../docs/examples/host", prefix, 0, func() error {
		_ = os.Unsetenv(prefix + "_HISTORY_FILE") // its directory is one that systemd makes
		return daemon.ParseEnv(prefix, &settings{})
	})
}
