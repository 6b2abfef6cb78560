// Package links tells when a network link or an address of this host comes, goes or changes.
package links

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/relay/socket"
)

// open subscribes to rtnetlink's events about links and addresses. It takes no capability.
func open() (*socket.Socket, error) {
	s, err := socket.New(unix.AF_NETLINK, unix.SOCK_RAW, "link events")
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

// Watch calls changed for each event until ctx is done. The event's content is not passed on: changed reads the links'
// state itself.
func Watch(ctx context.Context, changed func()) error {
	return Follow(ctx, func([]byte) { changed() })
}

// Follow calls changed with the rtnetlink messages of each event until ctx is done; with none where some were lost.
func Follow(ctx context.Context, changed func(messages []byte)) error {
	s, err := open()
	if err != nil {
		return fmt.Errorf("failed to subscribe to link events: %w", err)
	}
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	buffer := make([]byte, 1<<15)
	for {
		n, err := s.Read(buffer)
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
