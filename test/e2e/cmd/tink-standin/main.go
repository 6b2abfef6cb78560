// Command tink-standin serves Tink's WorkflowService from a file of workflows. It stands in for Tink Server, which
// needs a Kubernetes API.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/tinkerbell/stack/test/e2e/tink"
)

func main() {
	listen := flag.String("listen", ":42113", "`address` to listen on")
	file := flag.String("workflows", "", "JSON `file`: worker id to list of workflows")
	var refused []string
	flag.Func("refuse", "`worker` id that is denied; may be repeated", func(worker string) error {
		refused = append(refused, worker)
		return nil
	})
	flag.Parse()
	if err := run(*listen, *file, refused); err != nil {
		fmt.Fprintln(os.Stderr, "tink-standin:", err)
		os.Exit(1)
	}
}

func run(listen, file string, refused []string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("failed to read workflows: %w", err)
	}
	service := &tink.Server{Refused: refused, Logger: slog.New(slog.NewJSONHandler(os.Stderr, nil))}
	if err := json.Unmarshal(text, &service.Workflows); err != nil {
		return fmt.Errorf("failed to parse workflows %s: %w", file, err)
	}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return fmt.Errorf("failed to listen: %w", err)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	server := tink.NewGRPC(service)
	stop := context.AfterFunc(ctx, server.GracefulStop)
	defer stop()
	return server.Serve(listener)
}
