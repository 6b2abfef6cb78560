package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	netnsDir    = "/run/netns" // where "ip netns" looks
	netnsPrefix = "stack-"
)

// NamespacePath is the file that names a role's network namespace, for nsenter --net or ip netns.
func (l *Lab) NamespacePath(role string) string {
	return filepath.Join(netnsDir, netnsPrefix+l.id+"-"+role)
}

// mountPath is where the namespace is mounted. NamespacePath is but a link to it: the first "ip netns add" of a
// system mounts /run/netns on itself, and what was mounted there before could not be removed any more.
func (l *Lab) mountPath(role string) string { return filepath.Join(l.dir, mountsDir, role) }

// Roles lists the lab's network namespaces.
func (l *Lab) Roles() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.roles)
}

func (l *Lab) addNamespace(role string) error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return fmt.Errorf("failed to make %s: %w", netnsDir, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return fmt.Errorf("failed to add namespace %s: the lab is down", role)
	}
	path := l.mountPath(role)
	mountPoint, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("failed to name namespace %s: %w", role, err)
	}
	_ = mountPoint.Close()
	err = onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("failed to make namespace %s: %w", role, err)
		}
		self := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		if err := unix.Mount(self, path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("failed to keep namespace %s: %w", role, err)
		}
		if l.opts.IPv6 { // duplicate address detection takes 1.5 s
			if err := setSysctl("net/ipv6/conf/default/accept_dad", "0"); err != nil {
				return err
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		return err
	}
	if err := os.Symlink(path, l.NamespacePath(role)); err != nil {
		return fmt.Errorf("failed to name namespace %s: %w", role, err)
	}
	l.roles = append(l.roles, role)
	return nil
}

// with calls f with an open descriptor of a role's namespace.
func (l *Lab) with(role string, f func(fd int) error) error {
	fd, err := unix.Open(l.NamespacePath(role), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("failed to open namespace %s: %w", role, err)
	}
	defer func() { _ = unix.Close(fd) }()
	return f(fd)
}

// Do runs f on a thread inside a role's network namespace and waits for it. Sockets that f opens stay in the
// namespace and can be used anywhere; goroutines that f starts are outside.
func (l *Lab) Do(role string, f func() error) error {
	return l.with(role, func(fd int) error {
		return onOwnThread(func() error {
			if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("failed to enter namespace %s: %w", role, err)
			}
			return f()
		})
	})
}

// Dial gives a dialer whose connections start in a role's namespace, for http.Transport and gRPC. Addresses are
// literal: it resolves no names.
func (l *Lab) Dial(role string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = l.Do(role, func() error {
			var dialer net.Dialer
			conn, err = dialer.DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
}

// The process's first thread is kept for main: the runtime cannot end that one, so it would stay in the namespace
// of the first lab that onOwnThread took it to.
func init() { runtime.LockOSThread() }

// onOwnThread runs f on a thread of its own, which the runtime ends with the goroutine: whatever f did to the
// thread's namespaces or credentials concerns nobody else. A panic of f is the caller's.
func onOwnThread(f func() error) error {
	type result struct {
		err      error
		panicked any
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked
		var r result
		ended := false
		defer func() {
			if !ended {
				// A panic, or runtime.Goexit as t.FailNow does it: both must end the caller too.
				if r.panicked = recover(); r.panicked == nil {
					r.err = errors.New("failed inside namespace: the function ended its goroutine")
				}
			}
			done <- r
		}()
		r.err = f()
		ended = true
	}()
	r := <-done
	if r.panicked != nil {
		panic(r.panicked)
	}
	return r.err
}

// setSysctl sets a value of the calling thread's network namespace.
func setSysctl(name, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0); err != nil {
		return fmt.Errorf("failed to set %s: %w", strings.ReplaceAll(name, "/", "."), err)
	}
	return nil
}
