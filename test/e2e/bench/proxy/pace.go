package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// paced asks on rateClients connections, one after another, rate times a second in all, and times each answer. It is
// one thread that sleeps in ppoll(2): goroutines with timers of their own are late by more than what is measured. A
// request that is due while its connection still waits for the answer before is timed from when it was due, so that a
// stall shows in every request behind it; any other from when it is sent, since what is late then is only this client.
func paced(ctx context.Context, addr netip.AddrPort, begun, end time.Time) (took []time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	clients := make([]client, rateClients)
	polled := make([]unix.PollFd, rateClients)
	for i := range clients {
		fd, err := connect(addr)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		clients[i] = client{fd: fd, due: begun.Add(interval * time.Duration(i) / rateClients)}
		polled[i].Events = unix.POLLIN
	}
	for ctx.Err() == nil {
		now := time.Now()
		if !now.Before(end) {
			return took, nil
		}
		next, err := askDue(clients, polled, now, end)
		if err != nil {
			return nil, err
		}
		timeout := unix.NsecToTimespec(int64(max(time.Until(next), 0)))
		if _, err := unix.Ppoll(polled, &timeout, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, os.NewSyscallError("ppoll", err)
		}
		if took, err = readReady(clients, polled, took); err != nil {
			return nil, err
		}
	}
	return nil, ctx.Err()
}

// interval is the time between two requests of one client.
const interval = time.Second * rateClients / rate

// askDue sends the requests that are due, has each busy client's connection polled, and tells when the next request is
// due, at the latest end.
func askDue(clients []client, polled []unix.PollFd, now, end time.Time) (next time.Time, err error) {
	next = end
	for i := range clients {
		c := &clients[i]
		if !c.busy && !now.Before(c.due) {
			if err := c.ask(now); err != nil {
				return next, err
			}
		}
		polled[i].Fd = -1 // no answer is awaited
		if c.busy {
			polled[i].Fd = int32(c.fd)
		} else if c.due.Before(next) {
			next = c.due
		}
	}
	return next, nil
}

// readReady reads the answers that have come, and appends how long each whole one took.
func readReady(clients []client, polled []unix.PollFd, took []time.Duration) ([]time.Duration, error) {
	now := time.Now()
	for i := range clients {
		c := &clients[i]
		if !c.busy || polled[i].Revents == 0 {
			continue
		}
		if err := c.read(); err != nil {
			return nil, err
		}
		if !c.busy {
			took = append(took, now.Sub(c.from))
			c.late = !now.Before(c.due.Add(interval))
			c.due = c.due.Add(interval)
		}
	}
	return took, nil
}

// client is one connection.
type client struct {
	fd     int
	due    time.Time // the next request
	from   time.Time // the time of a request that is being answered
	late   bool      // due came before the answer did
	busy   bool
	answer []byte
}

var question = []byte("GET /auto.ipxe HTTP/1.1\r\nHost: bench\r\n\r\n")

func (c *client) ask(now time.Time) error {
	c.from = now
	if c.late {
		c.from = c.due
	}
	c.busy, c.answer = true, c.answer[:0]
	if n, err := unix.Write(c.fd, question); err != nil || n < len(question) {
		return fmt.Errorf("failed to send a request: %d of %d bytes: %w", n, len(question), err)
	}
	return nil
}

// read takes what is there; the client is busy until it is an answer.
func (c *client) read() error {
	var buffer [4096]byte
	n, err := unix.Read(c.fd, buffer[:])
	switch {
	case err != nil:
		return os.NewSyscallError("read", err)
	case n == 0:
		return errors.New("the connection was closed")
	}
	c.answer = append(c.answer, buffer[:n]...)
	head, body, whole := bytes.Cut(c.answer, []byte("\r\n\r\n"))
	if !whole {
		return nil
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200 ")) {
		return fmt.Errorf("got %q", head)
	}
	length := -1
	for line := range bytes.Lines(head) {
		if name, value, ok := bytes.Cut(line, []byte(":")); ok && bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	if length < 0 || len(body) > length {
		return fmt.Errorf("got %q with %d bytes behind it", head, len(body))
	}
	c.busy = len(body) < length
	return nil
}

// connect opens a blocking connection over IPv4.
func connect(addr netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("connect", err)
	}
	return fd, nil
}
