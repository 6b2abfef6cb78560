package feed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/boot"
)

// SenderConfig makes a [Sender].
type SenderConfig struct {
	// Socket is the path of the receiver's socket.
	Socket string
	// Queue is how many events may wait to be sent; 0 means [DefaultQueue].
	Queue int
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// DefaultQueue is how many events may wait.
const DefaultQueue = 4096

// holdFor is how long events are kept for a receiver that is not there yet, or is being replaced.
const holdFor = 5 * time.Second

// Sender sends events. It is a daemon.Task.
type Sender struct {
	config SenderConfig
	log    *slog.Logger
	queue  *boot.Queue
	conn   *net.UnixConn
	batch  []boot.Event
	// What has been encoded and not been sent: the receiver is slower than we are.
	datagram []byte
	events   int

	away    time.Time // since when there has been no receiver; zero while there is one
	told    bool      // that there is none
	sent    prometheus.Counter
	dropped *prometheus.CounterVec
	counted uint64 // of the queue's dropped
}

// Reasons for dropped events, as metric labels.
const (
	droppedFull = "queue" // more came than could be sent
	droppedAway = "away"  // nobody has the socket
	droppedSent = "send"  // the kernel did not take them
)

// NewSender makes a sender. Events may be given to it from now on, and are sent while it runs.
func NewSender(c SenderConfig) *Sender {
	s := &Sender{config: c, log: c.Logger, batch: make([]boot.Event, 64), datagram: make([]byte, 0, datagramMost)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if c.Queue == 0 {
		c.Queue = DefaultQueue
	}
	s.queue = boot.NewQueue(c.Queue)
	s.sent = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "dhcp_relay_boot_events_sent_total", Help: "Events of boots that were sent to stack-proxy.",
	})
	s.dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "dhcp_relay_boot_events_dropped_total",
		Help: "Events of boots that were not sent to stack-proxy, by reason: queue (more than could be sent), away " +
			"(nobody has the socket), send (the kernel did not take them).",
	}, []string{"reason"})
	for _, reason := range []string{droppedFull, droppedAway, droppedSent} {
		s.dropped.WithLabelValues(reason)
	}
	if c.Registerer != nil {
		c.Registerer.MustRegister(s.sent, s.dropped)
	}
	return s
}

// Event takes an event, which it does not keep. It never waits.
func (s *Sender) Event(e *boot.Event) { s.queue.Put(e) }

// Ready implements daemon.Task: the relay relays without it.
func (s *Sender) Ready() error { return nil }

// String implements daemon.Task.
func (s *Sender) String() string { return "boots" }

// Run implements daemon.Task. What is in the queue when ctx is done is still sent, if it can be at once.
func (s *Sender) Run(ctx context.Context) error {
	ticker := time.NewTicker(Every)
	defer ticker.Stop()
	s.away = time.Now()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
		s.turn(time.Now())
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
	return nil
}

// turn sends what there is.
func (s *Sender) turn(now time.Time) {
	if n := s.queue.Dropped(); n != s.counted {
		s.dropped.WithLabelValues(droppedFull).Add(float64(n - s.counted))
		s.counted = n
	}
	if !s.connect(now) {
		if now.Sub(s.away) >= holdFor {
			s.drop()
		}
		return
	}
	for s.flush(now) {
		n := s.queue.Take(s.batch)
		if n == 0 {
			return
		}
		for i := range s.batch[:n] {
			if len(s.datagram)+boot.MaxBinary > datagramMost && !s.flush(now) {
				s.dropped.WithLabelValues(droppedFull).Add(float64(n - i))
				return
			}
			s.datagram, _ = s.batch[i].AppendBinary(s.datagram)
			s.events++
		}
	}
}

// connect sees to it that there is a socket towards the receiver.
func (s *Sender) connect(now time.Time) bool {
	if s.conn != nil {
		return true
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.config.Socket, Net: "unixgram"})
	if err != nil {
		s.lost(now, err)
		return false
	}
	s.conn = conn
	if s.told {
		s.log.Info("boots are sent again", "socket", s.config.Socket)
	}
	s.away, s.told = time.Time{}, false
	return true
}

// lost notes that there is no receiver.
func (s *Sender) lost(now time.Time, err error) {
	if s.away.IsZero() {
		s.away = now
	}
	if !s.told && now.Sub(s.away) >= holdFor {
		s.told = true
		s.log.Warn("nobody takes events of boots", "socket", s.config.Socket, "error", err.Error())
	}
}

// drop forgets what nobody will take.
func (s *Sender) drop() {
	s.dropped.WithLabelValues(droppedAway).Add(float64(s.events))
	s.datagram, s.events = s.datagram[:0], 0
	for n := s.queue.Take(s.batch); n > 0; n = s.queue.Take(s.batch) {
		s.dropped.WithLabelValues(droppedAway).Add(float64(n))
	}
}

// flush sends what has been encoded; false where that has to be tried again later.
func (s *Sender) flush(now time.Time) bool {
	if s.events == 0 {
		return true
	}
	err := s.write()
	switch {
	case err == nil:
		s.sent.Add(float64(s.events))
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOBUFS):
		return false // the receiver has not come to it
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTCONN),
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		// The receiver has gone; another one may have its path.
		_ = s.conn.Close()
		s.conn = nil
		s.lost(now, err)
		return false
	default:
		s.dropped.WithLabelValues(droppedSent).Add(float64(s.events))
	}
	s.datagram, s.events = s.datagram[:0], 0
	return true
}

// write sends the datagram without waiting for room, as net would.
func (s *Sender) write() error {
	raw, err := s.conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("failed to send events of boots: %w", err)
	}
	var failure error
	err = raw.Control(func(fd uintptr) {
		failure = syscall.Sendto(int(fd), s.datagram, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, nil)
	})
	return errors.Join(err, failure)
}
