// Package hear takes what programs tell of boots, in the place of stack-boots, and reads none of it.
package hear

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
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
	var group sync.WaitGroup
	var frames, bytes atomic.Int64
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer func() { _ = conn.Close() }()
				take(conn, &frames, &bytes)
			})
		}
	})
	return socket, func() string {
		_ = listener.Close()
		_ = os.RemoveAll(directory)
		group.Wait() // the programs have ended
		return fmt.Sprintf("heard of boots: %d frames, %d bytes", frames.Load(), bytes.Load())
	}, nil
}

// take answers every frame of a stream (pkg/boot/feed describes it).
func take(conn net.Conn, frames, bytes *atomic.Int64) {
	_, err := conn.Write([]byte("stboots1" + "0123456789abcdef"))
	for buffer := make([]byte, 1<<16); err == nil; frames.Add(1) {
		var length [4]byte
		if _, err = io.ReadFull(conn, length[:]); err != nil {
			return
		}
		frame := buffer[:min(int64(binary.BigEndian.Uint32(length[:]))+16, int64(len(buffer)))]
		if _, err = io.ReadFull(conn, frame); err == nil {
			_, err = conn.Write([]byte{0x06})
		}
		bytes.Add(int64(len(frame)))
	}
}
