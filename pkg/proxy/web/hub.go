package web

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/proxy/loop"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
)

// hub is a front's share of a loop: clients' connections, and those to endpoints. What it holds is for the loop's
// thread only; others ask for something by soon.
type hub struct {
	front   *Front
	loop    *loop.Loop
	all     []*swift
	stock   *stock // of the direct that was used last
	ticking bool

	mu    sync.Mutex
	ended bool // the loop has, and who has mu is in its place
}

func (f *Front) hubsOf(loops []*loop.Loop) (made []*hub) {
	for _, l := range loops {
		made = append(made, &hub{front: f, loop: l})
	}
	return made
}

// soon has the loop call f. Where the loop has ended, which it should not before the front, f is called here.
func (h *hub) soon(f func()) {
	if h.loop.Do(f) {
		return
	}
	<-h.loop.Ended() // it may still be doing what it was asked before
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	f()
}

// To give a connection to a loop, and to take it back, costs what some requests do. So it has to be worth it: clients
// that come for one answer stay with the goroutine, and whoever often has to leave waits longer each time.
const (
	swiftWorth = 4
	leftWorth  = 8 // as much more
	mostWorth  = 1 << 16
)

// swift gives a connection to a loop; false where that cannot be, or is not worth it.
func (f *Front) swift(x *express) bool {
	if len(f.hubs) == 0 || x.row < x.worth {
		return false
	}
	if way := f.current.Load().plain; way == nil || !way.swift {
		return false
	}
	c, h := x.conn, f.hubs[int(f.turn.Add(1))%len(f.hubs)]
	fd, err := tcp.Duplicate(c.TCPConn)
	if err != nil {
		return false
	}
	s := &swift{conn: c, hub: h, fd: fd, first: x.first, who: x.who, place: -1}
	_ = c.TCPConn.Close() // the runtime's poller is not to be woken for it
	f.retired.Add(1)      // until it leaves the loop
	c.inLoop.Store(s)
	if c.lost() { // perhaps by who did not see yet that it is here
		s.close()
	} else if !h.loop.Do(s.enter) {
		s.leave(expressFor(c, f), stageNext, asked{})
	}
	return true
}

func (h *hub) add(s *swift) {
	s.place = len(h.all)
	h.all = append(h.all, s)
	if !h.ticking {
		h.ticking = true
		h.loop.Tick(h.tick)
	}
}

func (h *hub) remove(s *swift) {
	last := h.all[len(h.all)-1]
	h.all[s.place], last.place = last, s.place
	h.all[len(h.all)-1] = nil
	h.all = h.all[:len(h.all)-1]
}

// tick ends what takes too long, or hands it to who can wait.
func (h *hub) tick(now time.Time) (again bool) {
	for i := len(h.all) - 1; i >= 0; i-- { // those that leave are replaced by the last
		h.all[i].tick(now)
	}
	left := 0
	if h.stock != nil {
		left = h.stock.sweep(now)
	}
	h.ticking = len(h.all)+left > 0
	return h.ticking
}

// forget closes a descriptor that the loop has watched.
func (h *hub) forget(fd int, handle loop.Handle) {
	if !h.ended {
		h.loop.Forget(handle)
	}
	_ = unix.Close(fd)
}

// release has the loop watch a descriptor no longer.
func (h *hub) release(fd int, handle loop.Handle) {
	if !h.ended {
		h.loop.Release(fd, handle)
	}
}
