package feed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/boot"
)

// SenderConfig makes a [Sender].
type SenderConfig struct {
	Destination
	// Program and Pod name the sender, and Metrics begins the names of the metrics.
	Program, Pod, Metrics string
	// Queue is how many events may wait to be sent; 0 means [DefaultQueue]. Lines is the same for those of syslog lines,
	// which have a queue of their own.
	Queue, Lines int
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// DefaultQueue is how many events may wait: as many as a busy program has in a tenth of a second.
const DefaultQueue = 4096

const (
	// tryEvery is how often a sender looks for stack-boots, and warnAfter for how long it looks before it logs that.
	tryEvery, warnAfter = settle / 4, 5 * time.Second
	// answerTimeout is how long a receiver may take for a frame, and lastWords that for the last one.
	answerTimeout, lastWords = 5 * time.Second, time.Second
)

// Sender sends events. It is a daemon.Task.
type Sender struct {
	config        SenderConfig
	log           *slog.Logger
	events, lines *boot.Queue
	batch         []boot.Event
	hello         hello

	conn   net.Conn
	unhook func() bool // of conn from the context
	signer *signer
	tried  time.Time
	spoke  time.Time // when the last frame was answered

	body, frame []byte // body holds the events of the next frame, behind room for its head
	held        int    // events in it
	head        head

	away    time.Time // since when there has been no receiver; zero while there is one
	told    bool      // that there is none
	there   prometheus.Gauge
	sent    prometheus.Counter
	dropped *prometheus.CounterVec
	counted uint64 // of the queues' dropped
}

// Reasons for dropped events, as metric labels.
const (
	droppedFull    = "queue"   // more came than could be sent
	droppedAway    = "away"    // stack-boots is not there
	droppedRefused = "refused" // it does not take them
)

var errRefused = errors.New("it refuses what this program sends: is the key the same, and are both of one release?")

// NewSender makes a sender. Events may be given to it from now on, and are sent while it runs.
func NewSender(c SenderConfig) *Sender {
	if c.Queue == 0 {
		c.Queue = DefaultQueue
	}
	s := &Sender{
		config: c, log: c.Logger, batch: make([]boot.Event, turnMost), events: boot.NewQueue(c.Queue),
		lines: boot.NewQueue(c.Lines), body: make([]byte, headSize, bodyMost),
		frame: make([]byte, 0, lengthSize+bodyMost+codeSize), hello: hello{program: c.Program, pod: c.Pod},
	}
	_, _ = rand.Read(s.hello.session[:]) // it never fails
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.there = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: c.Metrics + "_boots_connected", Help: "Whether stack-boots takes events of boots.",
	})
	s.sent = prometheus.NewCounter(prometheus.CounterOpts{
		Name: c.Metrics + "_boot_events_sent_total", Help: "Events of boots that stack-boots took.",
	})
	s.dropped = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: c.Metrics + "_boot_events_dropped_total",
		Help: "Events of boots that stack-boots did not get, by reason: queue (more than could be sent), away (it was " +
			"not there, and newer ones needed the room), refused (it does not believe this program, or is of another " +
			"release).",
	}, []string{"reason"})
	for _, reason := range []string{droppedFull, droppedAway, droppedRefused} {
		s.dropped.WithLabelValues(reason)
	}
	if c.Registerer != nil {
		c.Registerer.MustRegister(s.there, s.sent, s.dropped)
	}
	return s
}

// Event takes an event, which it does not keep. It never waits.
func (s *Sender) Event(e *boot.Event) { s.events.Put(e) }

// Line is Event for that of a syslog line.
func (s *Sender) Line(e *boot.Event) { s.lines.Put(e) }

// Ready implements daemon.Task: the program does its work without it.
func (s *Sender) Ready() error { return nil }

// String implements daemon.Task.
func (s *Sender) String() string { return "sender of boot events" }

// Run implements daemon.Task. What is in the queues when ctx is done is still sent, if stack-boots takes it at once.
func (s *Sender) Run(ctx context.Context) error {
	ticker := time.NewTicker(PollEvery)
	defer ticker.Stop()
	s.away = time.Now()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
		s.sendQueued(ctx)
	}
	if s.conn != nil && s.held == 0 {
		_ = s.sendHeld(ctx, farewell)
	}
	s.close()
	return nil
}

// sendQueued sends what there is.
func (s *Sender) sendQueued(ctx context.Context) {
	now := time.Now()
	if n := s.events.Dropped() + s.lines.Dropped(); n != s.counted {
		s.lose(droppedFull, int(n-s.counted))
		s.counted = n
	}
	if s.conn == nil {
		if now.Sub(s.tried) >= tryEvery {
			s.tried = now
			if err := s.connect(ctx); err != nil {
				s.missing(now, err)
			}
		}
		if s.conn == nil {
			s.makeRoom()
			return
		}
	}
	for s.fill() || now.Sub(s.spoke) >= heartbeat {
		if err := s.sendHeld(ctx, time.Now().UnixNano()); err != nil {
			s.close()
			if errors.Is(err, errRefused) {
				s.lose(droppedRefused, s.held)
				s.empty()
			}
			s.missing(now, err)
			return
		}
		s.sent.Add(float64(s.held))
		s.head.number, s.head.lost = s.head.number+uint64(s.held), 0
		s.empty()
		s.spoke = now
		s.present()
	}
}

// fill encodes events of the queues, as many as a frame has room for, and reports whether there are any.
func (s *Sender) fill() bool {
	for more := true; more; {
		more = false
		for _, q := range []*boot.Queue{s.events, s.lines} {
			room := min((bodyMost-len(s.body))/boot.MaxBinary, turnMost)
			n := q.Take(s.batch[:room])
			for i := range s.batch[:n] {
				s.body, _ = s.batch[i].AppendBinary(s.body)
			}
			s.held += n
			more = more || n > 0
		}
	}
	return s.held > 0
}

func (s *Sender) empty() { s.body, s.held = s.body[:headSize], 0 }

// lose counts events that stack-boots will not get; it is told how many.
func (s *Sender) lose(reason string, n int) {
	s.dropped.WithLabelValues(reason).Add(float64(n))
	s.head.lost += uint64(n)
}

// makeRoom drops the oldest events while nobody takes them, so that there is room for newer ones.
func (s *Sender) makeRoom() {
	for _, q := range []*boot.Queue{s.events, s.lines} {
		for n := 1; n > 0 && q.Full(); {
			n = q.Take(s.batch[:1])
			s.lose(droppedAway, n)
		}
	}
}

// connect opens a stream and names this program.
func (s *Sender) connect(ctx context.Context) error {
	key, err := readKey(s.config.BootsKeyFile)
	if err != nil {
		return err
	}
	dialer := net.Dialer{Timeout: answerTimeout}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, networkOf(s.config.BootsAddress), s.config.BootsAddress)
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(answerTimeout))
	var greeting [len(magic) + nonceSize]byte
	if _, err = io.ReadFull(conn, greeting[:]); err == nil && string(greeting[:len(magic)]) != magic {
		err = errors.New("it is another program, or of another release")
	}
	if err != nil { // a timeout where it hangs; an end where it has no key itself
		_ = conn.Close()
		return fmt.Errorf("failed to read the greeting of stack-boots: %w", err)
	}
	s.unhook = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now().Add(lastWords)) })
	s.conn, s.signer, s.spoke = conn, newSigner(key, [nonceSize]byte(greeting[len(magic):])), time.Time{}
	s.frame = s.signer.seal(s.frame[:0], s.hello.append(nil))
	if err := s.send(); err != nil {
		s.close()
		return err
	}
	return nil
}

// sendHeld sends the events that are held with our time, and waits for the answer.
func (s *Sender) sendHeld(ctx context.Context, now int64) error {
	timeout := answerTimeout
	if ctx.Err() != nil {
		timeout = lastWords
	}
	_ = s.conn.SetDeadline(time.Now().Add(timeout))
	s.head.now = now
	s.head.append(s.body[:0])
	s.frame = s.signer.seal(s.frame[:0], s.body)
	return s.send()
}

func (s *Sender) send() error {
	if _, err := s.conn.Write(s.frame); err != nil {
		return err
	}
	if _, err := io.ReadFull(s.conn, s.frame[:1]); err != nil {
		return err
	}
	if s.frame[0] != taken {
		return errRefused
	}
	return nil
}

func (s *Sender) close() {
	if s.conn != nil {
		s.unhook()
		_ = s.conn.Close()
		s.conn = nil
	}
}

// present notes that there is a receiver.
func (s *Sender) present() {
	if s.told {
		s.log.Info("boots are told again", "address", s.config.BootsAddress)
	}
	s.away, s.told = time.Time{}, false
	s.there.Set(1)
}

// missing notes that there is none, and why.
func (s *Sender) missing(now time.Time, err error) {
	if s.away.IsZero() {
		s.away = now
	}
	s.there.Set(0)
	if !s.told && now.Sub(s.away) >= warnAfter {
		s.told = true
		s.log.Warn("stack-boots does not take events", "address", s.config.BootsAddress, "error", err.Error())
	}
}
