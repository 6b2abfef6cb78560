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
	// thread sleeps, which looks for something to do every 10 ms at least while any processor is in use.
	settle = 30 * time.Millisecond
	// often is the longest mean time between two batches for which waiting in the kernel is worth its preparations.
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

	since   time.Time // when the poller was last begun with
	batches int       // since then
}

// Pump hands every batch that arrives to handle until the socket fails or is closed; its deadline in the past
// ends it with os.ErrDeadlineExceeded.
//
// It waits in one of two ways. Go's poller costs nothing while nothing comes, but to be woken by it takes two system
// calls and a way through the scheduler, which cost more than to relay a packet. So while packets come often the Pump
// blocks in recvmmsg(2), and does not tell the scheduler: its thread keeps its processor, so that the scheduler's
// monitor thread, which sleeps at that time, need not be woken to take it away and again to give it back. The scheduler
// gets the processor back whenever it asks for it: by its signal, which ends the call. Then the Pump waits by the
// poller for a while, until the monitor thread sleeps again.
//
// One processor is always left to other goroutines: with GOMAXPROCS 1 the poller is all there is.
func (s *Socket) Pump(in *mmsg.RecvBatch, handle func(n int)) error {
	p := &pump{Socket: s, in: in, handle: handle, since: time.Now()}
	if err := s.conn.Read(p.poll); p.failed == nil {
		return err
	}
	return p.failed
}

// poll takes what is there, and what comes while the thread may wait in the kernel. It is true when the socket failed.
func (p *pump) poll(epoll uintptr) (failed bool) {
	if p.drain() {
		return true
	}
	if !p.begin() {
		return false
	}
	// Packets no longer wake the thread that waits for the poller. To start a goroutine makes sure that there is one: it
	// may be this thread that waited.
	go func() {}()
	p.watch(epoll, 0)
	p.block()
	p.watch(epoll, unix.EPOLLIN)
	waiting.Add(-1)
	p.since, p.batches = time.Now(), 0
	// The poller is not woken for what came before it looked again, where an event that it had been told of still lies in
	// the epoll's list.
	if p.failed == nil && !p.stopped.Load() {
		p.drain()
	}
	return p.failed != nil
}

// drain takes what is there. It is true when the socket failed.
func (p *pump) drain() (failed bool) {
	for n := mmsg.Batch; n == mmsg.Batch; {
		var errno unix.Errno
		if n, errno = p.in.Receive(p.fd, mmsg.Batch, unix.MSG_DONTWAIT); errno != 0 {
			return p.ended(errno)
		}
		p.handle(n)
	}
	return false
}

// begin tells whether to wait in the kernel from now on: batches come often, and there is a processor to spare.
func (p *pump) begin() bool {
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

// block receives in the kernel until the scheduler wants its processor back, nothing comes, or the Pump is to end: of a
// deadline, or that the socket is being closed, only the poller would tell it.
func (p *pump) block() {
	for !p.stopped.Load() {
		n, errno := p.in.Receive(p.fd, mmsg.Batch, unix.MSG_WAITFORONE)
		if errno != 0 {
			p.ended(errno)
			return
		}
		p.handle(n)
	}
}

// ended tells whether an error is one of the socket, and keeps it.
func (p *pump) ended(errno unix.Errno) (failed bool) {
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
