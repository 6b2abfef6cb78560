package syslog

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/record"
)

const (
	// maxPace bounds worker.pace. Meanwhile the receive buffer has to hold burst datagrams a second, which the kernel
	// charges bookSize bytes each.
	maxPace  = 5 * time.Millisecond
	burst    = 200_000
	bookSize = 1280
)

// worker owns one listening socket and an upstream socket for each address family.
type worker struct {
	config   Config
	meters   *meters
	trouble  *loglimit.Limiter
	listener *datagram.Socket
	poller   *datagram.Poller
	in       *datagram.RecvBatch
	v4, v6   upstream
	overflow uint32
	// pace is the shortest time between two batches that are not full. Under load it gathers datagrams into batches that
	// would wake the worker one by one; a message that comes alone does not wait.
	pace time.Duration
	now  time.Time // of the batch; only with a Sink
}

// upstream is a socket towards endpoints, with the batch to send by it.
type upstream struct {
	socket *datagram.Socket // nil where the kernel lacks the family
	out    *datagram.SendBatch
}

func newWorker(c Config, listener *datagram.Socket, m *meters, limiter *loglimit.Limiter) (w *worker, err error) {
	w = &worker{
		config:  c,
		meters:  m,
		trouble: limiter,
		in:      datagram.NewRecvBatch(),
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.v4, err = open(c, netip.IPv4Unspecified()); err != nil {
		return nil, err
	}
	if w.v6, err = open(c, netip.IPv6Unspecified()); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, err
	}
	if w.poller, err = datagram.NewPoller(4); err != nil {
		return nil, err
	}
	for i, up := range []*upstream{&w.v4, &w.v6} {
		if up.socket == nil {
			continue
		}
		if err := w.poller.Add(up.socket, datagram.Token{ID: int32(i + 1)}); err != nil {
			return nil, err
		}
	}
	if err := w.poller.AddOnce(listener, datagram.Token{}); err != nil {
		return nil, err
	}
	w.listener = listener
	w.pace = min(maxPace, time.Duration(listener.ReceiveBuffer()/bookSize)*time.Second/burst)
	return w, nil
}

func open(c Config, family netip.Addr) (upstream, error) {
	s, err := datagram.Open(family)
	if err != nil {
		return upstream{}, err
	}
	s.GrowBuffers(sendBuffer)
	if err := s.ReportErrors(); err != nil {
		s.Close()
		return upstream{}, fmt.Errorf("failed to open syslog route %s: %w", c.Route, err)
	}
	return upstream{socket: s, out: datagram.NewSendBatch(s, true)}, nil
}

// sendBuffer is asked for upstream sockets, in bytes.
const sendBuffer = 1 << 20

func (w *worker) close() {
	for _, s := range []*datagram.Socket{w.listener, w.v4.socket, w.v6.socket} {
		if s != nil {
			s.Close()
		}
	}
	w.in.Close()
	for _, up := range []*upstream{&w.v4, &w.v6} {
		if up.out != nil {
			up.out.Close()
		}
	}
	if w.poller != nil {
		w.poller.Close()
	}
}

// run forwards until ctx is done, and then the datagrams that have arrived before.
func (w *worker) run(ctx context.Context) error {
	defer w.close()
	stop := context.AfterFunc(ctx, w.poller.Wake)
	defer stop()
	var last time.Time
	for ctx.Err() == nil {
		if err := w.poller.Wait(-1, w.event); err != nil {
			return err
		}
		if rest := w.pace - time.Since(last); rest > 0 {
			sleep(rest)
		}
		for w.forwardBatch() == mmsg.Batch {
			if ctx.Err() != nil {
				break
			}
		}
		last = time.Now()
		if err := w.poller.Again(w.listener, datagram.Token{}); err != nil {
			return err
		}
	}
	for deadline := time.Now().Add(w.config.DrainTimeout); w.forwardBatch() > 0 && time.Now().Before(deadline); {
	}
	return nil
}

// event takes the errors of the upstream sockets: an endpoint does not listen. forwardBatch reads the listener.
func (w *worker) event(e datagram.Event) {
	up := &w.v4
	switch e.ID {
	case 0:
		return
	case 2:
		up = &w.v6
	}
	up.socket.DrainErrors(func(endpoint datagram.Peer) {
		w.meters.drop(DropRefused, 1)
		w.config.Report.Refused(endpoint)
		w.trouble.Warn("syslog endpoint refuses datagrams: nobody listens there", func() []any {
			return []any{"endpoint", endpoint.AddrPort}
		})
	})
	_ = w.in.Receive(up.socket, mmsg.Batch) // syslog has no answers: a datagram must not wake the worker again
}

// sleep blocks the thread: nothing else wakes the goroutine meanwhile.
func sleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // an early return does no harm
}

// forwardBatch forwards one batch and returns its size.
func (w *worker) forwardBatch() int {
	if err := w.in.Receive(w.listener, mmsg.Batch); err != nil {
		return 0
	}
	if w.config.Sink != nil {
		w.now = time.Now()
	}
	n, bytes := w.in.Len(), 0
	for i := range n {
		if total, known := w.in.Overflow(i); known && total != w.overflow {
			w.meters.drop(DropOverflow, int(total-w.overflow))
			w.trouble.Warn("syslog datagrams lost in the receive buffer", func() []any {
				return []any{"count", total - w.overflow, "buffer", w.listener.ReceiveBuffer()}
			})
			w.overflow = total
		}
		bytes += len(w.in.Data(i))
		w.meters.drop(w.forward(i), 1)
	}
	w.meters.bytes.Add(float64(bytes))
	w.flush(&w.v4)
	w.flush(&w.v6)
	return n
}

// forward puts the i-th datagram into the batch of its endpoint's family, or drops it.
func (w *worker) forward(i int) Drop {
	data, client := w.in.Data(i), w.in.Peer(i)
	switch {
	case len(data) == 0:
		return DropEmpty
	case w.in.Truncated(i):
		return DropTruncated
	}
	endpoint, err := w.config.Pick(client.Addr())
	if err != nil {
		w.trouble.Warn("no endpoint for syslog", func() []any {
			return []any{"client", client.Addr(), "error", err}
		})
		m := Parse(data)
		w.record(client, netip.AddrPort{}, &m, DropNoEndpoint)
		return DropNoEndpoint
	}
	to := datagram.Peer{AddrPort: netip.AddrPortFrom(endpoint.Addr().Unmap(), endpoint.Port())}
	asked, _, _ := w.in.Local(i)
	if to.Addr() == asked && to.Port() == w.listener.Local().Port() || datagram.FromOurselves(client, asked) {
		w.trouble.Warn("the syslog endpoint is this proxy itself", func() []any {
			return []any{"endpoint", to.AddrPort}
		})
		return DropLoop
	}
	up := &w.v4
	if to.Addr().Is6() {
		up = &w.v6
	}
	if up.socket == nil {
		w.trouble.Warn("no socket of the endpoint's family", func() []any {
			return []any{"endpoint", to.AddrPort}
		})
		return DropNoEndpoint
	}
	w.line(i, up, client, to)
	up.out.Tag(stream(client.Addr()))
	return NotDropped
}

// line puts a message into the batch, with its sender, and records it as it came.
func (w *worker) line(i int, up *upstream, client, to datagram.Peer) {
	m := Parse(w.in.Data(i))
	w.record(client, to.AddrPort, &m, NotDropped)
	up.out.Push(m.Append(up.out.Next(), client.Addr()), to, netip.Addr{}, 0)
}

// record records a line that is passed on, or that no endpoint takes.
func (w *worker) record(client datagram.Peer, endpoint netip.AddrPort, m *Message, why Drop) {
	x := record.Exchange{
		Kind: record.Syslog, Route: w.config.Route, Port: w.listener.Local().Port(), Client: client.Addr(),
		Endpoint: endpoint, Begin: w.now, Code: uint16(m.Priority),
		Software: record.Text(m.App), Message: record.Text(m.Text),
	}
	if why == NotDropped {
		x.Bytes = uint64(len(m.Text))
	} else {
		x.Outcome, x.Reason = record.NoServer, why.String()
	}
	w.config.Sink.Record(x)
}

// stream is a number for a machine: datagrams with the same number stay in order.
func stream(client netip.Addr) uint32 {
	hash := uint32(2166136261) // FNV-1a
	for _, c := range client.As16() {
		hash = (hash ^ uint32(c)) * 16777619
	}
	return hash
}

func (w *worker) flush(up *upstream) {
	if up.out == nil || up.out.Len() == 0 {
		return
	}
	n := up.out.Len()
	failed, err := up.out.Send()
	if failed > 0 {
		w.meters.drop(DropUnsent, failed)
		w.trouble.Warn("syslog datagrams not sent", func() []any {
			return []any{"count", failed, "error", err}
		})
	}
	w.meters.datagrams.Add(float64(n - failed))
}
