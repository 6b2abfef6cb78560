package datagram

import (
	"context"
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/mmsg"
)

// sessionBatch is how many datagrams of one session are received before those of the next session.
const sessionBatch = 16

// A Worker serves one listening socket and the sessions that began there, in one goroutine.
type Worker[T any] struct {
	listener *Socket
	handler  Handler[T]
	options  Options
	poller   *Poller

	sessions   []*Session[T] // by token
	vacant     []int32
	generation int32 // of the next token
	byClient   map[sessionKey]*Session[T]
	live       queue[T] // sessions that have not ended: the longest silent one expires first
	// Groups have a bound each, within which sessions are evicted; they have the ended ones too.
	all      group[T]
	clients  map[netip.Addr]*group[T]
	networks map[netip.Prefix]*group[T] // of IPv6
	timers   timers[T]
	refused  refusedClients
	draining bool
	now      time.Time
	overflow uint32

	in    *RecvBatch
	out   *SendBatch
	tasks tasks
}

// NewWorker makes the worker of a listener, which it owns from now on, also when it fails.
func NewWorker[T any](listener *Socket, handler Handler[T], o Options) (*Worker[T], error) {
	poller, err := NewPoller(2 * mmsg.Batch)
	if err != nil {
		listener.Close()
		return nil, err
	}
	if err := poller.Add(listener, Token{}); err != nil {
		poller.Close()
		listener.Close()
		return nil, err
	}
	return &Worker[T]{
		listener: listener,
		handler:  handler,
		options:  o,
		poller:   poller,
		sessions: make([]*Session[T], 1), // 0 is the listener
		byClient: make(map[sessionKey]*Session[T]),
		all:      group[T]{list: listWorker},
		clients:  make(map[netip.Addr]*group[T]),
		networks: make(map[netip.Prefix]*group[T]),
		in:       NewRecvBatch(),
		out:      NewSendBatch(listener, false),
	}, nil
}

// Now is when the worker last looked at the clock: before it waits, and at each event.
func (w *Worker[T]) Now() time.Time { return w.now }

// Wake makes the worker look at timeouts that have changed.
func (w *Worker[T]) Wake() { w.poller.Wake() }

// Close gives the worker's sockets back, if Run was never called.
func (w *Worker[T]) Close() {
	w.poller.Close()
	w.listener.Close()
	w.in.Close()
	w.out.Close()
}

// Run serves until ctx is done and then until the last live session has ended or the time to drain is over.
func (w *Worker[T]) Run(ctx context.Context) error {
	defer w.Close()
	stop := context.AfterFunc(ctx, w.poller.Wake)
	defer stop()
	defer w.closeAll()
	var deadline time.Time
	for {
		w.now = time.Now()
		if !w.draining && ctx.Err() != nil {
			w.draining = true
			deadline = w.now.Add(w.options.Limits.bounds.Load().Drain)
		}
		if w.draining && (w.live.n == 0 || !w.now.Before(deadline)) {
			return nil
		}
		if err := w.poller.Wait(w.timeout(deadline), w.event); err != nil {
			return err
		}
		for _, f := range w.tasks.take() {
			f()
		}
		w.flush()
		w.expire()
		w.callDue()
		w.flush()
	}
}

// timeout is the time until the next session expires, or the drain ends.
func (w *Worker[T]) timeout(deadline time.Time) time.Duration {
	timeout := time.Duration(-1)
	sooner := func(at time.Time) {
		if d := max(at.Sub(w.now), 0); timeout < 0 || d < timeout {
			timeout = d
		}
	}
	if s := w.live.first; s != nil {
		sooner(s.active.Add(w.options.Limits.bounds.Load().Idle))
	}
	if s := w.all.queues[rankEnded].first; s != nil {
		sooner(s.stepped.Add(w.options.Limits.bounds.Load().Linger))
	}
	if len(w.timers) > 0 {
		sooner(w.timers[0].timer.wake)
	}
	if w.draining {
		sooner(deadline)
	}
	return timeout
}

func (w *Worker[T]) event(e Event) {
	w.now = time.Now()
	if e.ID == 0 {
		w.fromClients()
		return
	}
	s := w.sessions[e.ID]
	if s == nil || s.token != e.Token {
		return // closed by an earlier event of the same iteration
	}
	if e.Failed {
		refused := false
		s.socket.DrainErrors(func(Peer) { refused = true })
		if refused {
			w.handler.Unreachable(w, s)
		}
		if !s.open {
			return
		}
	}
	w.fromServer(s)
}

func (w *Worker[T]) fromClients() {
	if err := w.in.Receive(w.listener, mmsg.Batch); err != nil {
		return // the kernel reports an error of an earlier datagram here
	}
	for i := range w.in.Len() {
		if total, known := w.in.Overflow(i); known && total != w.overflow {
			w.handler.Lost(total - w.overflow)
			w.overflow = total
		}
		d := Datagram{Client: w.in.Peer(i), Data: w.in.Data(i), Truncated: w.in.Truncated(i)}
		asked, link, _ := w.in.Local(i)
		d.Asked, d.Interface = asked, uint32(link)
		if d.Asked.IsMulticast() || d.Asked == broadcast {
			d.Asked = netip.Addr{} // no answer can come from there: the kernel chooses the source
		}
		s := w.session(d)
		if s != nil {
			w.touch(s)
		}
		w.handler.Client(w, s, d)
	}
}

// session finds the one that d belongs to: that of the client and the asked address, or of the client without one. A
// client that asked a multicast or broadcast address sends what follows to the address that answered.
func (w *Worker[T]) session(d Datagram) *Session[T] {
	if s := w.byClient[sessionKey{d.Client, d.Asked}]; s != nil {
		return s
	}
	return w.byClient[sessionKey{client: d.Client}]
}

func (w *Worker[T]) fromServer(s *Session[T]) {
	if err := w.in.Receive(s.socket, sessionBatch); err != nil {
		return
	}
	for i := range w.in.Len() {
		if !s.open {
			return // an earlier datagram has ended the session
		}
		if !w.handler.Server(w, s, w.in.Peer(i), w.in.Data(i)) {
			continue
		}
		w.touch(s)
		w.makeSpace()
		w.out.Take(w.in, i, s.Client, s.Asked, s.Interface)
	}
}

// makeSpace makes space in the batch for one more datagram to a client.
func (w *Worker[T]) makeSpace() {
	if w.out.Full() {
		w.flush()
	}
}

func (w *Worker[T]) flush() {
	if w.out.Len() == 0 {
		return
	}
	if failed, err := w.out.Send(); failed > 0 {
		w.handler.Unsent(failed, err)
	}
}

// Answer sends a client the proxy's own data, from the address and port that it asked.
func (w *Worker[T]) Answer(d Datagram, data []byte) {
	w.makeSpace()
	w.out.Push(append(w.out.Next(), data...), d.Client, d.Asked, d.Interface)
}

// Reply sends a session's client a datagram of the proxy's own, of one or more parts.
func (w *Worker[T]) Reply(s *Session[T], parts ...[]byte) {
	w.makeSpace()
	b := w.out.Next()
	for _, part := range parts {
		b = append(b, part...)
	}
	w.out.Push(b, s.Client, s.Asked, s.Interface)
}
