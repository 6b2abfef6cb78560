// Package hear takes what programs tell of boots, in the place of stack-boots, and reads none of it.
package hear

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// Boots hears at a Unix socket, until stop is called, which says how much was heard.
func Boots() (socket string, stop func() string, err error) {
	directory, err := os.MkdirTemp("", "bench-boots-")
	if err != nil {
		return "", nil, fmt.Errorf("failed to make directory for the socket of boots: %w", err)
	}
	socket = filepath.Join(directory, "events.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		_ = os.RemoveAll(directory)
		return "", nil, fmt.Errorf("failed to open the socket of boots: %w", err)
	}
	var posts, bytes atomic.Int64
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, _ := io.Copy(io.Discard, r.Body)
			posts.Add(1)
			bytes.Add(n)
			w.WriteHeader(http.StatusNoContent)
		}),
	}
	var group sync.WaitGroup
	group.Go(func() { _ = server.Serve(listener) })
	return socket, func() string {
		_ = server.Close()
		_ = os.RemoveAll(directory)
		group.Wait() // the programs have ended
		return fmt.Sprintf("heard of boots: %d posts, %d bytes", posts.Load(), bytes.Load())
	}, nil
}
