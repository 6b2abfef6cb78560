// Command dhcp-relay has the DHCP requests of machines on provisioning VLANs answered by servers elsewhere.
package main

//go:generate go test . -count=1 -run ^TestDocumentAgreesWithCode$ -update

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/daemon/admin"
	"github.com/tinkerbell/stack/pkg/relay"
	"github.com/tinkerbell/stack/pkg/relay/trace"
)

const notes = `It needs the capability NET_RAW for its listeners, and NET_BIND_SERVICE where port 67 is privileged.

  dhcp-relay trace [-mac MAC] [-admin ADDRESS]
      writes the last packets of a running relay as a pcap file

The arguments of ISC dhcrelay work too, where they map: -id -iu -U -m forward -c -a -g and server names.
A variable wins over an argument. docs/reference/dhcp-relay.md explains every setting, drop reason and metric.`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == traceCommand {
		return runTrace(args[1:], cmp.Or(os.Getenv(prefix+"_ADMIN_ADDRESS"), defaultAdmin), stdout, stderr)
	}
	if isISC(args) {
		if err := adopt(args); err != nil {
			fmt.Fprintf(stderr, "dhcp-relay: failed to read arguments: %v\n", err)
			return 2
		}
		args = nil
	}
	var s settings
	program := daemon.Program{
		Name: "dhcp-relay", Prefix: prefix, Config: &s, Notes: notes,
		Summary: "relay DHCP between machines on provisioning VLANs and servers elsewhere",
	}
	if code, done := program.Start(args, stdout, stderr); done {
		return code
	}
	runtime.GOMAXPROCS(s.processors())

	log := s.OpenLog(stderr)
	defer log.Close()
	logger := log.Logger
	registry := admin.NewRegistry(log)
	tasks, helpers, handlers, err := relays(&s, logger, registry)
	if err != nil {
		logger.Error("failed to start", "error", err.Error())
		return 1
	}
	err = daemon.Run(context.Background(), daemon.Options{
		Logger: logger,
		Admin: admin.New(admin.Options{
			Address: s.AdminAddress, Registry: registry,
			Handlers: handlers,
		}),
		Tasks:   tasks,
		Helpers: helpers,
		Grace:   s.DrainGrace,
	})
	if err != nil {
		return 1 // Run has logged it
	}
	return 0
}

// relays makes the relay of each family that is asked for.
func relays(s *settings, logger *slog.Logger, registry prometheus.Registerer) (
	tasks, helpers []daemon.Task, handlers map[string]http.Handler, err error,
) {
	var rings []*trace.Ring
	var tell func(*boot.Event)
	if s.BootsAddress != "" {
		host, _ := os.Hostname()
		sender := feed.NewSender(feed.SenderConfig{
			Destination: s.Destination, Program: "dhcp-relay", Pod: host, Metrics: "dhcp_relay",
			Logger: logger, Registerer: registry,
		})
		tell, helpers = sender.Event, []daemon.Task{sender}
	}
	for _, config := range s.relays() {
		config.Logger, config.Registerer, config.Event = logger, registry, tell
		r, err := relay.New(config)
		if err != nil {
			return nil, nil, nil, err
		}
		tasks, rings = append(tasks, r), append(rings, r.Trace())
	}
	handlers = map[string]http.Handler{"GET " + tracePath: traceHandler(rings...)}
	return tasks, helpers, handlers, nil
}

// adopt turns the arguments of ISC dhcrelay into variables, except for those that are set already.
func adopt(args []string) error {
	set, err := fromISC(args)
	if err != nil {
		return err
	}
	for name, value := range set {
		if key := prefix + "_" + name; os.Getenv(key) == "" {
			if err := os.Setenv(key, value); err != nil {
				return fmt.Errorf("failed to set %s: %w", key, err)
			}
		}
	}
	return nil
}
