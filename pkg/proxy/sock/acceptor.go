package sock

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/backoff"
	"github.com/tinkerbell/stack/pkg/proxy/loop"
)

const (
	// acceptBatch is how many connections an acceptor takes before the loop serves its other sockets.
	acceptBatch = 64
	// backlog is how many may wait at a socket, as Linux has it (net.core.somaxconn).
	backlog = 4096
	// acceptPause and acceptPauses are the first and the longest wait after a connection could not be accepted.
	acceptPause, acceptPauses = 5 * time.Millisecond, time.Second
)

// Owner has the connections that an [Acceptor] accepts.
type Owner interface {
	// Admit takes a connection, whose descriptor is the owner's from then on. The loop calls it.
	Admit(fd int, peer netip.AddrPort)
	// Failed reports an error of accept(2) or epoll_ctl(2), and for how long the acceptor has accepted nothing since. A
	// goroutine of the acceptor calls it, since a slow log would hold up the loop.
	Failed(err error, pause time.Duration)
}

// Acceptor accepts a listener's connections in one event loop. Its methods are for the loop's thread.
type Acceptor struct {
	loop     *loop.Loop
	listener *Listener
	owner    Owner
	handle   loop.Handle
	stopped  bool
	backoff  backoff.Backoff
	reports  sync.WaitGroup // the call of Owner.Failed under way
}

// NewAcceptor makes an acceptor that has not begun.
func NewAcceptor(l *loop.Loop, listener *Listener, owner Owner) *Acceptor {
	return &Acceptor{
		loop: l, listener: listener, owner: owner, backoff: backoff.Backoff{First: acceptPause, Most: acceptPauses},
	}
}

// Accept begins all acceptors, waits until ctx is done or one of them cannot begin, and stops them: the kernel queues
// further connections. An acceptor that fails later calls [Owner.Failed], unless its loop has ended:
// [loop.Group.Run] reports that.
func Accept(ctx context.Context, all ...*Acceptor) (err error) {
	begun := make(chan error, len(all))
	for _, a := range all {
		if !a.loop.Do(func() { begun <- a.Begin() }) {
			begun <- errors.New("loop has ended")
		}
	}
	for ctx.Err() == nil && err == nil {
		select {
		case <-ctx.Done():
		case err = <-begun:
		}
	}
	for _, a := range all {
		stopped := make(chan struct{})
		stop := func() { a.Stop(); close(stopped) }
		// The connections that wait already are taken: the kernel resets them when the socket is closed.
		if !a.loop.Do(func() { _ = a.take(backlog); stop() }) {
			<-a.loop.Ended()
			stop()
		}
		<-stopped
		a.Wait()
	}
	return err
}

// Begin begins to accept connections, unless the acceptor was stopped.
func (a *Acceptor) Begin() (err error) {
	if a.stopped {
		return nil
	}
	a.handle, err = a.loop.Watch(a.listener.FD(), loop.Listening, a)
	return err
}

// Stop ends accepting; the kernel queues further connections.
func (a *Acceptor) Stop() {
	a.stopped = true
	a.loop.Release(a.listener.FD(), a.handle)
}

// Wait waits for a call of Owner.Failed that is under way. Another goroutine calls it after Stop.
func (a *Acceptor) Wait() { a.reports.Wait() }

// Ready implements loop.Watcher. It survives a lack of descriptors or memory: it pauses, and the kernel queues the
// connections.
func (a *Acceptor) Ready(loop.Events) {
	if err := a.take(acceptBatch); err != nil {
		a.fail(err)
	}
}

// take accepts connections that wait, so many at most.
func (a *Acceptor) take(most int) error {
	for range most {
		fd, peer, err := accept(a.listener.FD())
		switch {
		case err == nil:
			a.backoff.Reset()
			a.owner.Admit(fd, peer)
		case errors.Is(err, unix.EAGAIN):
			return nil
		case ofConnection(err): // the next one may be accepted
		default:
			return err
		}
	}
	return nil
}

// fail pauses after an error, and reports the error when the pause is over.
func (a *Acceptor) fail(err error) {
	wait := a.backoff.Next()
	a.pause(wait, func() { a.owner.Failed(err, wait) })
}

// pause stops accepting for wait. Then it calls done in a goroutine, and begins again after it. If the acceptor has
// been stopped meanwhile, it does neither.
func (a *Acceptor) pause(wait time.Duration, done func()) {
	a.loop.Release(a.listener.FD(), a.handle)
	a.handle = loop.Handle{}
	time.AfterFunc(wait, func() {
		a.loop.Do(func() {
			if !a.stopped {
				a.reports.Go(func() {
					done()
					a.loop.Do(a.resume)
				})
			}
		})
	})
}

// resume begins after a pause.
func (a *Acceptor) resume() {
	if err := a.Begin(); err != nil {
		a.fail(err)
	}
}
