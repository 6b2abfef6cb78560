// Command registry is an OCI registry, github.com/distribution/distribution, that keeps all in one directory: for the
// rehearsal of a release.
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:5000", "the address")
	root := flag.String("root", "", "the directory")
	certificate := flag.String("certificate", "", "the certificate, in PEM")
	key := flag.String("key", "", "its key, in PEM")
	flag.Parse()
	if err := serve(*listen, *root, *certificate, *key); err != nil {
		fmt.Fprintf(os.Stderr, "registry: %v\n", err)
		os.Exit(1)
	}
}

// serve serves HTTPS until a signal comes.
func serve(listen, root, certificate, key string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	settings, err := configuration.Parse(strings.NewReader(fmt.Sprintf(
		"version: 0.1\nlog: {level: warn, accesslog: {disabled: true}}\nstorage: {filesystem: {rootdirectory: %q}}\nhttp: {addr: %q, secret: rehearsal}\n",
		root, listen)))
	if err != nil {
		return err
	}
	server := &http.Server{
		Addr: listen, Handler: handlers.NewApp(ctx, settings), ReadHeaderTimeout: 10 * time.Second,
	}
	done := make(chan error, 1)
	go func() { done <- server.ListenAndServeTLS(certificate, key) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return server.Close()
	}
}
