// Command stack-proxy is the ingress of a Tinkerbell stack: TCP, HTTP, gRPC, TFTP, syslog and files on one IP.
package main

//go:generate go test . -count=1 -run ^TestDocumentsAgreeWithCode$ -update
//go:generate go test ../../pkg/route -count=1 -run ^TestSchemaAgreesWithCode$ -update

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/internal/watch"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/daemon/admin"
	"github.com/tinkerbell/stack/pkg/endpoint/kube"
	"github.com/tinkerbell/stack/pkg/proxy"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

const (
	name    = "stack-proxy"
	prefix  = "STACK_PROXY"
	summary = "the ingress of a Tinkerbell stack on one IP"
	notes   = `Commands:
  check [-f FILE]   say what is wrong with a routes file, with lines and fields, and print the effective table
  fetch [-f FILE]   bring the OS files up to date once, and exit

The routes and the artifacts file are read again when they change and on SIGHUP; a wrong one changes nothing.
Low ports need no capability where the sysctl net.ipv4.ip_unprivileged_port_start is 0.
SIGTERM drains: not ready, grace, no new connections, then what is open ends or is closed at the timeout.`
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var c config
	program := daemon.Program{Name: name, Summary: summary, Prefix: prefix, Config: &c, Notes: notes}
	if len(args) > 0 {
		switch args[0] {
		case "check":
			return check(args[1:], stdout, stderr)
		case "fetch":
			return fetchOnce(args[1:], stderr)
		}
	}
	if code, done := program.Start(args, stdout, stderr); done {
		return code
	}
	log := c.OpenLog(stderr)
	defer log.Close()
	logger := log.Logger
	container := admission.Tune(logger)
	registry := admin.NewRegistry(log)
	routesFile, stop := follow(c.RoutesFile)
	defer stop()
	artifactsFile, stop := follow(c.ArtifactsFile)
	defer stop()
	files, err := c.fetcher(logger, registry)
	if err != nil {
		logger.Error("failed to start", "error", err)
		return 1
	}
	table, err := c.table()
	if err != nil {
		logger.Error("failed to start", "error", err)
		return 1
	}
	c.sayMissing(table, logger)
	sink, helpers := c.boots(logger, registry)
	options := proxy.Options{
		Sink:         sink,
		Table:        table,
		CatchAnswers: c.CatchAnswers,
		Kube:         &kube.Client{Logger: logger},
		Addresses:    c.PublicAddresses,
		Logger:       logger,
		Registry:     registry,
		Account:      reserve(table).Account(container, logger),
		Container:    container,
	}
	p, err := proxy.New(options)
	if err != nil {
		logger.Error("failed to start", "error", err)
		return 1
	}
	reload := func(ctx context.Context) { p.Reload(ctx, c.table) }
	tasks := []daemon.Task{p, &watch.Task{Name: "reload", Files: routesFile, Reload: reload}}
	handlers := map[string]http.Handler{"GET /routes": p}
	if files != nil {
		tasks = append(tasks, background{files, time.Now().Add(c.ArtifactsWait)}, &watch.Task{
			Name: "reload of artifacts", Files: artifactsFile, Reload: func(context.Context) { files.Reload(c.artifacts) },
		})
		handlers["GET /artifacts"] = files
	}
	server := admin.New(admin.Options{
		Address:  c.AdminAddress,
		Registry: registry,
		Handlers: handlers,
	})
	err = daemon.Run(context.Background(), daemon.Options{
		Logger: logger, Admin: server, Tasks: tasks, Helpers: helpers,
		Grace: c.DrainGrace, Leave: p.Leave, DrainTime: p.DrainTime,
	})
	if err != nil {
		return 1
	}
	return 0
}

// follow watches a file from now on, with SIGHUPs of its own until it is stopped.
func follow(path string) (file *watch.Files, stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return watch.New(path, hangups), func() { signal.Stop(hangups) }
}
