package feed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/tinkerbell/stack/pkg/boot"
)

// mode of the socket: the programs of the pod may run as different users, and none needs to read it. Who may reach it
// at all is decided by the volume, which only they mount.
const mode = 0o622

// receiveBuffer is asked for, in bytes, so that a burst of datagrams waits and is not refused.
const receiveBuffer = 1 << 20

// Receiver takes the events of dhcp-relay. It is a daemon.Task.
type Receiver struct {
	path    string
	event   func(*boot.Event)
	conn    *net.UnixConn
	refused atomic.Uint64 // datagrams
}

// Listen opens the socket at a path, in place of one that a process before us has left there. Event is told of every
// event, by one goroutine; an event is valid during the call.
func Listen(path string, event func(*boot.Event)) (*Receiver, error) {
	if err := remove(path); err != nil {
		return nil, err
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("failed to listen for events of boots: %w", err)
	}
	if err := os.Chmod(path, mode); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("failed to open the socket of boots to dhcp-relay: %w", err)
	}
	_ = conn.SetReadBuffer(receiveBuffer) // as far as rmem_max allows
	return &Receiver{path: path, event: event, conn: conn}, nil
}

// remove takes away a socket that nobody has any more, and nothing else.
func remove(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("failed to look for the socket of boots: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("failed to open the socket of boots: %s is there, and is no socket", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("failed to replace the socket of boots: %w", err)
	}
	return nil
}

// Refused is how many datagrams were not what dhcp-relay sends.
func (r *Receiver) Refused() uint64 { return r.refused.Load() }

// Run implements daemon.Task.
func (r *Receiver) Run(ctx context.Context) error {
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = r.conn.Close()
		close(closed)
	})
	defer func() {
		if !stop() {
			<-closed // until then the kernel takes datagrams for a receiver that reads no more
		}
	}()
	buffer := make([]byte, datagramMost+1)
	var e boot.Event
	for {
		n, err := r.conn.Read(buffer)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.ENOBUFS) {
				continue
			}
			return fmt.Errorf("failed to read events of boots: %w", err)
		}
		if !r.datagram(buffer[:n], &e) {
			r.refused.Add(1)
		}
	}
}

// datagram takes the events of one; false where it holds anything else, behind which nothing is read.
func (r *Receiver) datagram(b []byte, e *boot.Event) bool {
	if len(b) == 0 || len(b) > datagramMost {
		return false
	}
	for len(b) > 0 {
		rest, err := e.Decode(b)
		if err != nil || !fromRelay(e) {
			return false
		}
		b = rest
		r.event(e)
	}
	return true
}

// fromRelay is whether an event is one that dhcp-relay tells: whoever has its place cannot speak for the proxy's
// protocols.
func fromRelay(e *boot.Event) bool {
	return (e.Kind == boot.DHCPRequest || e.Kind == boot.DHCPReply) &&
		(e.Outcome == boot.Passed || e.Outcome == boot.Dropped)
}

// Ready implements daemon.Task: the proxy does its work without it.
func (r *Receiver) Ready() error { return nil }

// String implements daemon.Task.
func (r *Receiver) String() string { return "boots of dhcp-relay" }

// Close gives up a receiver that never ran.
func (r *Receiver) Close() error { return r.conn.Close() }
