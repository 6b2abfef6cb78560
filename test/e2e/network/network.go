// Package network makes network namespaces for benches and soaks, and joins them by links. Package lab has its own,
// which have names and outlive a process.
package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// inside marks the process that [Enter] has started.
const inside = "STACK_NETWORK_INSIDE"

// Enter starts this program again in a network namespace of its own and waits for its end; done is then true. In the
// program so started it brings the loopback up. The error wraps os.ErrPermission where that is not allowed.
func Enter(ctx context.Context) (done bool, err error) {
	if os.Getenv(inside) != "" {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return false, fmt.Errorf("failed to find loopback: %w", err)
		}
		if err := netlink.LinkSetUp(lo); err != nil {
			return false, fmt.Errorf("failed to bring loopback up: %w", err)
		}
		return false, nil
	}
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Run(); errors.Is(err, os.ErrPermission) {
		return true, fmt.Errorf("failed to make a network namespace (it needs root): %w", err)
	} else if err != nil {
		return true, err
	}
	return true, nil
}

// New makes a namespace. Closing the handle gives it up.
func New() (netns.NsHandle, error) {
	handle := netns.None()
	err := OnThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("failed to make network namespace: %w", err)
		}
		handle, err = netns.Get()
		return err
	})
	return handle, err
}

// OnThread runs f on a thread of its own, which ends with it.
func OnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// Do runs f inside a namespace, on a thread of its own. Sockets that it opens stay there.
func Do(ns netns.NsHandle, f func() error) error {
	return OnThread(func() error {
		if err := Into(ns)(); err != nil {
			return err
		}
		return f()
	})
}

// Into moves the calling thread into a namespace, such as the thread that starts a program (process.Options.Enter).
func Into(ns netns.NsHandle) func() error {
	return func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("failed to enter namespace: %w", err)
		}
		return nil
	}
}

// Join makes a veth pair between two namespaces.
func Join(a netns.NsHandle, nameA string, b netns.NsHandle, nameB string) error {
	handle, err := netlink.NewHandleAt(a, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("failed to open netlink: %w", err)
	}
	defer handle.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = nameA
	veth := &netlink.Veth{LinkAttrs: attributes, PeerName: nameB, PeerNamespace: netlink.NsFd(b)}
	if err := handle.LinkAdd(veth); err != nil {
		return fmt.Errorf("failed to make veth %s: %w", nameA, err)
	}
	return nil
}

// Raise gives a link addresses, such as "192.0.2.1/24", and brings it up. IPv6 addresses can be used at once.
func Raise(ns netns.NsHandle, name string, addresses ...string) error {
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("failed to open netlink: %w", err)
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("failed to find %s: %w", name, err)
	}
	for _, address := range addresses {
		parsed, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if parsed.IP.To4() == nil {
			parsed.Flags = unix.IFA_F_NODAD
		}
		if err := handle.AddrReplace(link, parsed); err != nil {
			return fmt.Errorf("failed to give %s address %s: %w", name, address, err)
		}
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("failed to bring %s up: %w", name, err)
	}
	return nil
}

// Route leads a prefix by way of an address.
func Route(ns netns.NsHandle, prefix, via string) error {
	_, to, err := net.ParseCIDR(prefix)
	if err != nil {
		return err
	}
	handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("failed to open netlink: %w", err)
	}
	defer handle.Close()
	if err := handle.RouteAdd(&netlink.Route{Dst: to, Gw: net.ParseIP(via)}); err != nil {
		return fmt.Errorf("failed to route %s by way of %s: %w", prefix, via, err)
	}
	return nil
}
