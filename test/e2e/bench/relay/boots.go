package relay

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// hearBoots takes what dhcp-relay tells of boots, in the place of stack-proxy, until stop is called.
func (o *Options) hearBoots() (stop func(), err error) {
	directory, err := os.MkdirTemp("", "bench-relay-")
	if err != nil {
		return nil, fmt.Errorf("failed to make directory for the socket of boots: %w", err)
	}
	o.socket = filepath.Join(directory, "events.sock")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: o.socket, Net: "unixgram"})
	if err != nil {
		_ = os.RemoveAll(directory)
		return nil, fmt.Errorf("failed to open the socket of boots: %w", err)
	}
	ended := make(chan error, 1)
	datagrams, bytes := 0, 0
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, err := socket.Read(buffer)
			if err != nil {
				ended <- err
				return
			}
			datagrams++
			bytes += n
		}
	}()
	return func() {
		_ = socket.Close()
		if err := <-ended; !errors.Is(err, net.ErrClosed) {
			fmt.Fprintf(o.Log, "failed to read the socket of boots: %v\n", err)
		}
		fmt.Fprintf(o.Log, "heard of boots: %d datagrams, %d bytes\n", datagrams, bytes)
		_ = os.RemoveAll(directory)
	}, nil
}
