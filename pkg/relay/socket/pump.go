package socket

import (
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/mmsg"
)

const (
	// settle is how long a Pump waits by Go's poller before it waits in the kernel: by then the scheduler's monitor
	// thread sleeps, which runs every 10 ms at least while any processor is in use.
	settle = 30 * time.Millisecond
	// often is the longest mean time between two batches for which a Pump waits in the kernel: with longer ones the
	// preparations cost more than they save.
	often = 10 * time.Millisecond
	// quiet is how long a Pump waits in the kernel for a packet before it waits by the poller again.
	quiet = 100 * time.Millisecond
)

// waiting is how many Pumps wait in the kernel, each with a processor (GOMAXPROCS) of its own.
var waiting atomic.Int32

// pump is a Pump.
type pump struct {
	*Socket
	in     *mmsg.RecvBatch
	handle func(n int)
	failed error

	since   time.Time // when the Pump last began to wait by the poller
	batches int       // since then
}

// Pump hands every batch that arrives to handle until the socket fails or is closed; its deadline in the past
// ends it with os.ErrDeadlineExceeded.
//
// A Pump waits by Go's poller, or in the kernel. The poller costs nothing while no packet comes, but a wake-up by it
// takes two system calls and the scheduler, which cost more than to relay a packet. So while packets come often the
// Pump blocks in recvmmsg(2) without telling the scheduler: the thread keeps its processor, and the scheduler's
// monitor thread, which sleeps at that time, need not be woken to take the processor away and again to give it back.
// When the scheduler needs the processor, its signal ends the system call. Then the Pump waits by the poller until
// the monitor thread sleeps again.
//
// One processor is always left to other goroutines: with GOMAXPROCS 1 a Pump never waits in the kernel.
func (s *Socket) Pump(in *mmsg.RecvBatch, handle func(n int)) error {
	p := &pump{Socket: s, in: in, handle: handle, since: time.Now()}
	if err := s.conn.Read(p.poll); p.failed == nil {
		return err
	}
	return p.failed
}

// poll handles the packets that have arrived, and those that come while the thread may wait in the kernel. It is true
// when the socket failed. Go's poller calls it, with the descriptor of an epoll that watches the socket
// (see Socket).
func (p *pump) poll(epoll uintptr) (failed bool) {
	if p.drain() || !p.occupy() {
		return p.failed != nil
	}
	// Starting a goroutine makes sure that a thread waits for Go's poller: until now that may have been this thread.
	go func() {}()
	p.watch(epoll, 0)
	p.block()
	waiting.Add(-1)
	p.since, p.batches = time.Now(), 0
	return p.failed != nil || p.rearm(epoll)
}

// rearm has the epoll watch the socket again, and handles the packets that came before. The poller is perhaps not told
// of those: the kernel tells it of a socket once, and again only when the poller has seen that socket without packets.
func (p *pump) rearm(epoll uintptr) (failed bool) {
	p.watch(epoll, unix.EPOLLIN)
	return p.failed != nil || !p.stopped.Load() && p.drain()
}

// drain handles the packets that have arrived. It is true when the socket failed.
func (p *pump) drain() (failed bool) {
	for n := mmsg.Batch; n == mmsg.Batch; {
		var errno unix.Errno
		if n, errno = p.in.Receive(p.fd, mmsg.Batch, unix.MSG_DONTWAIT); errno != 0 {
			return p.noteError(errno)
		}
		p.handle(n)
	}
	return false
}

// occupy takes a processor to wait in the kernel with; false where batches do not come often, or no other is left.
func (p *pump) occupy() bool {
	p.batches++
	now := time.Now()
	polled := now.Sub(p.since)
	if polled < settle {
		return false
	}
	busy := polled < time.Duration(p.batches)*often
	p.since, p.batches = now, 0
	if !busy {
		return false
	}
	if int(waiting.Add(1)) < runtime.GOMAXPROCS(0) {
		return true
	}
	waiting.Add(-1)
	return false
}

// block receives in the kernel until the scheduler needs the processor, no packet comes for a while, or the Pump is
// stopped: only the poller returns at a deadline, or when the socket is closed.
func (p *pump) block() {
	for !p.stopped.Load() {
		n, errno := p.in.Receive(p.fd, mmsg.Batch, unix.MSG_WAITFORONE)
		if errno != 0 {
			p.noteError(errno)
			return
		}
		p.handle(n)
	}
}

// noteError notes the error of a receive, where it means that the socket has failed.
func (p *pump) noteError(errno unix.Errno) (failed bool) {
	if errno == unix.EAGAIN || errno == unix.EINTR {
		return false
	}
	p.failed = os.NewSyscallError("recvmmsg", errno)
	return true
}

// watch has the socket's epoll look for events.
func (p *pump) watch(epoll uintptr, events uint32) {
	err := unix.EpollCtl(int(epoll), unix.EPOLL_CTL_MOD, p.fd, &unix.EpollEvent{Events: events})
	if err != nil && p.failed == nil {
		p.failed = os.NewSyscallError("epoll_ctl", err)
	}
}
