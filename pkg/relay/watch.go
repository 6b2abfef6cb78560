package relay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/relay/mmsg"
)

// openWatch subscribes to rtnetlink's events about links and IPv4 addresses. It takes no capability.
func openWatch() (*mmsg.Socket, error) {
	s, err := mmsg.NewSocket(unix.AF_NETLINK, unix.SOCK_RAW, "link events")
	if err != nil {
		return nil, err
	}
	err = s.Control(func(fd int) error {
		return os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{
			Family: unix.AF_NETLINK,
			Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR,
		}))
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// watch has listeners and lookups notice at once when a link or an address comes, goes or changes. Without it they
// would within seconds. What an event says does not matter: whoever is woken looks for itself.
func (r *Relay) watch(ctx context.Context) error {
	s, err := openWatch()
	if err != nil {
		return fmt.Errorf("failed to subscribe to link events: %w", err)
	}
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	buffer := make([]byte, 1<<15)
	for {
		_, err := s.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return s.Close()
		case err == nil || errors.Is(err, syscall.ENOBUFS): // too many events at once: some were lost, so look
			r.linksChanged()
		default:
			return errors.Join(fmt.Errorf("failed to read link events: %w", err), s.Close())
		}
	}
}

// linksChanged has everything that depends on links look again.
func (r *Relay) linksChanged() {
	for _, l := range r.listeners {
		l.wake()
	}
	r.servers.Refresh()
}
