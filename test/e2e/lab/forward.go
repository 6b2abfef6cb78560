package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// Forward lets a person outside of the lab look at a TCP port inside it, as "kubectl port-forward" does: it listens on
// 127.0.0.1 of the caller's network namespace and connects to target from the role's. It listens on the port that is
// asked for or, where that is taken, on any, and returns the address. It lives as long as the lab, also when that is
// detached.
func (l *Lab) Forward(role, target string, port uint16) (string, error) {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	listener, err := net.Listen("tcp", hostPort(loopback, port))
	if err != nil {
		if listener, err = net.Listen("tcp", hostPort(loopback, 0)); err != nil {
			return "", fmt.Errorf("failed to forward to %s: %w", target, err)
		}
	}
	defer func() { _ = listener.Close() }()
	addr := listener.Addr().String()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return "", fmt.Errorf("failed to forward to %s: %w", target, err)
	}
	defer func() { _ = file.Close() }()
	process := l.helperProcess(role, "forward", target)
	process.Name, process.Files = "forward-"+addr, []*os.File{file}
	if _, err := l.Start(process); err != nil {
		return "", err
	}
	return addr, nil
}

// serveForward is the forward helper: it takes connections of the listener that it was given and connects each to the
// target, in the namespace that it was started in.
func serveForward(args []string) error {
	if len(args) != 1 {
		return errors.New("want the address to connect to")
	}
	file := os.NewFile(3, "listener")
	if file == nil {
		return errors.New("there is no listener")
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return err
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			if err := join(conn, args[0]); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
}

// join carries bytes between a connection and the target, both ways, until both have ended.
func join(near net.Conn, target string) error {
	defer func() { _ = near.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	far, err := new(net.Dialer).DialContext(ctx, "tcp", target)
	if err != nil {
		return err
	}
	defer func() { _ = far.Close() }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pass(far, near)
	}()
	pass(near, far)
	<-ended
	return nil
}

// pass copies one way, and ends that way.
func pass(to, from net.Conn) {
	_, _ = io.Copy(to, from) // a connection that breaks is a page that is reloaded
	_ = to.(*net.TCPConn).CloseWrite()
}
