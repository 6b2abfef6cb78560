// Command stack-lb gives the addresses of Services of type LoadBalancer to one node at a time, and announces them
// there.
package main

//go:generate go test . -count=1 -run ^TestDocumentAgreesWithCode$ -update

import (
	"context"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/daemon/admin"
	"github.com/tinkerbell/stack/pkg/lb"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

const notes = `It needs the capabilities NET_ADMIN and NET_RAW in the host's network namespace.

/addresses on the admin port has what this node knows of each address, and why it does not announce it.

SIGTERM withdraws the addresses and releases their leases, so that other nodes have them at once.`

// releaseTime is how long withdrawing the addresses may take, with an API that is slow.
const releaseTime = 5 * time.Second

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var s settings
	program := daemon.Program{
		Name: "stack-lb", Prefix: prefix, Config: &s, Notes: notes,
		Summary: "give the addresses of Services of type LoadBalancer to one node at a time",
	}
	if code, done := program.Start(args, stdout, stderr); done {
		return code
	}
	log := s.OpenLog(stderr)
	defer log.Close()
	logger := log.Logger
	only, err := alone()
	if err != nil {
		logger.Error("failed to start", "error", err)
		return 1
	}
	defer only.Close()
	manager, err := address.New()
	if err != nil {
		logger.Error("failed to start", "error", err)
		return 1
	}
	defer manager.Close()
	cluster, err := s.cluster(logger)
	if err != nil {
		logger.Error("failed to start", "error", err)
		return 1
	}
	registry := admin.NewRegistry(log)
	controller := lb.New(lb.Options{
		Client: cluster.client, Leases: cluster.leases, Namespace: cluster.namespace, LeaseOwner: cluster.owner,
		Watch: s.WatchNamespace, Node: s.Node, Identity: lb.Identity(s.Node, bootID()),
		Services: service.Options{Class: s.Class, Names: s.Services, Mode: service.Mode(s.Mode), Allowed: s.Addresses},
		Bounds:   bounded(logger), Times: s.times(),
		Host: lb.NewNetwork(manager), Logger: logger, Registerer: registry,
	})
	err = daemon.Run(context.Background(), daemon.Options{
		Logger: logger,
		Admin: admin.New(admin.Options{
			Address: s.AdminAddress, Registry: registry,
			Handlers: map[string]http.Handler{"GET /addresses": controller},
		}),
		Tasks: []daemon.Task{controller}, DrainTime: func() time.Duration { return releaseTime },
	})
	if err != nil {
		return 1 // Run has logged it
	}
	return 0
}
