// Command dhcp-relay has the DHCP requests of machines on provisioning VLANs answered by servers elsewhere.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/daemon/admin"
	"github.com/tinkerbell/stack/pkg/relay"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var s settings
	program := daemon.Program{
		Name: "dhcp-relay", Prefix: prefix, Config: &s,
		Summary: "relay DHCP between machines on provisioning VLANs and servers elsewhere",
		Notes: "It needs the capability NET_RAW for its listeners, and NET_BIND_SERVICE where port 67 is privileged.\n" +
			"docs/dhcp-relay.md explains every setting, drop reason and metric.",
	}
	if code, done := program.Start(args, stdout, stderr); done {
		return code
	}
	// One packet costs microseconds and waits for the kernel only: a second processor would add wake-ups, not speed.
	runtime.GOMAXPROCS(1)

	logger := s.Logger(stderr)
	registry := admin.NewRegistry()
	config := s.relay()
	config.Logger, config.Registerer = logger, registry
	r, err := relay.New(config)
	if err != nil {
		logger.Error("failed to start", "error", err.Error())
		return 1
	}
	err = daemon.Run(context.Background(), daemon.Options{
		Logger: logger,
		Admin:  admin.New(admin.Options{Address: s.AdminAddress, Registry: registry, Pprof: s.Pprof}),
		Tasks:  []daemon.Task{r},
	})
	if err != nil {
		fmt.Fprintf(stderr, "dhcp-relay: %v\n", err)
		return 1
	}
	return 0
}
