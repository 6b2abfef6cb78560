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
	hold := flag.Bool("hold", false, "keep streams of workflows open until the worker leaves, and say nothing of calls")
	var refused []string
	flag.Func("refuse", "`worker` id that is denied; may be repeated", func(worker string) error {
		refused = append(refused, worker)
		return nil
	})
	flag.Parse()
	if err := run(*listen, *file, refused, *hold); err != nil {
		fmt.Fprintln(os.Stderr, "tink-standin:", err)
		os.Exit(1)
	}
}

func run(listen, file string, refused []string, hold bool) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("failed to read workflows: %w", err)
	}
	service := &tink.Server{Refused: refused, Hold: hold}
	if !hold { // many workers, of which nobody reads
		service.Logger = slog.New(slog.NewJSONHandler(os.Stderr, nil))
	}
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
	end := server.GracefulStop
	if hold { // open streams would not end by themselves
		end = server.Stop
	}
	stop := context.AfterFunc(ctx, end)
	defer stop()
	return server.Serve(listener)
}
