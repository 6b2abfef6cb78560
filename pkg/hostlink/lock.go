package hostlink

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// podLock lets one broadcast-init at a time change the listeners of a pod. It is a flock(2) on the pod's network
// namespace itself, as procfs shows it: the processes of one pod share that file and nothing else needs to be mounted
// or writable. The kernel gives the lock back when its holder ends, however that ends.
type podLock struct{ namespace *os.File }

// openLock opens the lock of the calling thread's network namespace.
func openLock() (*podLock, error) {
	namespace, err := os.Open(filepath.Join(procfs, "thread-self", "ns", "net"))
	if err != nil {
		return nil, fmt.Errorf("failed to open own network namespace: %w", err)
	}
	return &podLock{namespace: namespace}, nil
}

func (l *podLock) close() { _ = l.namespace.Close() }

// How long a change waits for another one, which takes milliseconds, and how often it looks.
const (
	lockMost  = 5 * time.Second
	lockEvery = 5 * time.Millisecond
)

// hold runs change while nobody else in the pod changes a listener. After lockMost it gives up with [Busy].
func (l *podLock) hold(change func() error) error {
	for deadline := time.Now().Add(lockMost); ; time.Sleep(lockEvery) {
		err := unix.Flock(int(l.namespace.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			defer func() { _ = unix.Flock(int(l.namespace.Fd()), unix.LOCK_UN) }()
			return change()
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("failed to lock own network namespace: %w", err)
		case time.Now().After(deadline):
			return busy()
		}
	}
}
