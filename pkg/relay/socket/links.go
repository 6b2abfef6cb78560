package socket

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// subscribe opens a socket for rtnetlink's events about links and addresses. It takes no capability.
func subscribe() (*Socket, error) {
	s, err := New(unix.AF_NETLINK, unix.SOCK_RAW, "link events")
	if err != nil {
		return nil, err
	}
	err = s.Control(func(fd int) error {
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{
			Family: unix.AF_NETLINK,
			Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR,
		}))
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// WatchLinks calls changed when a link or an address of this host has come, gone or changed, until ctx is done, with
// the event's rtnetlink messages; with none where some were lost.
func WatchLinks(ctx context.Context, changed func(messages []byte)) error {
	s, err := subscribe()
	if err != nil {
		return fmt.Errorf("failed to subscribe to link events: %w", err)
	}
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	buffer := make([]byte, 1<<15)
	for {
		n, err := s.read(buffer)
		switch {
		case ctx.Err() != nil:
			return s.Close()
		case err == nil:
			changed(buffer[:n])
		case errors.Is(err, syscall.ENOBUFS): // too many events at once: some were lost, so look
			changed(nil)
		default:
			return errors.Join(fmt.Errorf("failed to read link events: %w", err), s.Close())
		}
	}
}
