package feed

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/metric"
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
	// turnMost is how many events of one queue are taken before the next one's.
	turnMost = 64
	// tryEvery is how often a sender looks for stack-boots: several times in the 2 s that a [Merger] waits at first.
	tryEvery = 500 * time.Millisecond
	// warnAfter is for how long it looks before it logs that.
	warnAfter = 5 * time.Second
	// answerTimeout is how long a receiver may take for a post, and lastWords that for the last one.
	answerTimeout, lastWords = 5 * time.Second, time.Second
)

// Sender sends events. It is a daemon.Task.
type Sender struct {
	config        SenderConfig
	log           *slog.Logger
	events, lines *boot.Queue
	batch         []boot.Event
	client        http.Client
	tried         time.Time
	spoke         time.Time // when the last post was answered

	head head
	body []byte // the events of the next post
	held int    // events in it

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
	c.Queue = cmp.Or(c.Queue, DefaultQueue)
	s := &Sender{
		config: c, log: cmp.Or(c.Logger, slog.New(slog.DiscardHandler)), batch: make([]boot.Event, turnMost),
		events: boot.NewQueue(c.Queue), lines: boot.NewQueue(c.Lines), body: make([]byte, 0, eventsMost), away: time.Now(),
		head: head{Session: rand.Text(), Program: c.Program, Pod: c.Pod},
	}
	s.client.Transport = &http.Transport{DialContext: s.dial}
	set := metric.New(c.Registerer, c.Metrics)
	s.there = set.Gauge("boots_connected", "Whether stack-boots takes events of boots.").WithLabelValues()
	s.sent = set.Counter("boot_events_sent_total", "Events of boots that stack-boots took.").WithLabelValues()
	s.dropped = set.Counter("boot_events_dropped_total", "Events of boots that stack-boots did not get, by reason: "+
		"queue (more than could be sent), away (it was not there, and newer ones needed the room), refused (it does not "+
		"believe this program, or is of another release).", "reason")
	for _, reason := range []string{droppedFull, droppedAway, droppedRefused} {
		s.dropped.WithLabelValues(reason)
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
	defer s.client.CloseIdleConnections()
	ticker := time.NewTicker(PollEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
		s.sendQueued(ctx)
	}
	s.head.Over = true
	if s.away.IsZero() && s.held == 0 {
		_ = s.post(ctx)
	}
	return nil
}

// sendQueued sends what there is. While nobody takes it, it asks at times whether somebody does.
func (s *Sender) sendQueued(ctx context.Context) {
	now := time.Now()
	if n := s.events.Dropped() + s.lines.Dropped(); n != s.counted {
		s.lose(droppedFull, int(n-s.counted))
		s.counted = n
	}
	if !s.away.IsZero() && now.Sub(s.tried) < tryEvery {
		s.makeRoom()
		return
	}
	s.tried = now
	for s.prepare(now) {
		if err := s.post(ctx); err != nil {
			if errors.Is(err, errRefused) {
				s.lose(droppedRefused, s.held)
				s.empty()
			}
			s.missing(now, err)
			s.makeRoom()
			return
		}
		s.sent.Add(float64(s.held))
		s.head.Number, s.head.Lost = s.head.Number+uint64(s.held), 0
		s.empty()
		s.spoke = now
		s.present()
	}
}

// prepare fills a post, and reports whether it is to be sent.
func (s *Sender) prepare(now time.Time) (due bool) {
	if !s.away.IsZero() {
		return true // what is held is sent once more, or nothing, to see whether somebody is there
	}
	s.fill()
	return s.held > 0 || now.Sub(s.spoke) >= heartbeat
}

// eventsMost is how much of a post its events take at most, in bytes.
const eventsMost = bodyMost - 1<<10

// fill encodes events of the queues, as many as a post has room for.
func (s *Sender) fill() {
	for more := true; more; {
		more = false
		for _, q := range []*boot.Queue{s.events, s.lines} {
			room := min((eventsMost-len(s.body))/boot.MaxBinary, turnMost)
			n := q.Take(s.batch[:room])
			for i := range s.batch[:n] {
				s.body = s.batch[i].AppendBinary(s.body)
			}
			s.held += n
			more = more || n > 0
		}
	}
}

func (s *Sender) empty() { s.body, s.held = s.body[:0], 0 }

// lose counts events that stack-boots will not get; it is told how many.
func (s *Sender) lose(reason string, n int) {
	s.dropped.WithLabelValues(reason).Add(float64(n))
	s.head.Lost += uint64(n)
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

// dial opens a connection to stack-boots, which is held to the key where there is one.
func (s *Sender) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	var config *tls.Config
	if s.config.BootsKeyFile != "" {
		var err error
		if config, err = identity(s.config.BootsKeyFile); err != nil {
			return nil, err
		}
	}
	// A packet to a dead node is lost without a word, and the sender is to find the next stack-boots within quietStart.
	dialer := net.Dialer{Timeout: time.Second}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, networkOf(s.config.BootsAddress), s.config.BootsAddress)
	if err != nil || config == nil {
		return conn, err
	}
	return tls.Client(conn, config), nil
}

// post sends the events that are held, and waits for the answer: not for long once the program is to end.
func (s *Sender) post(ctx context.Context) error {
	s.head.Now = time.Now().UnixNano()
	line, err := json.Marshal(s.head)
	if err != nil {
		return err
	}
	body := append(append(line, '\n'), s.body...) // it may be read after Do has returned
	attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(lastWords, cancel) })
	defer stop()
	request, err := http.NewRequestWithContext(attempt, http.MethodPost, "http://stack-boots"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := s.client.Do(request)
	if errors.Is(err, errForged) {
		return errRefused
	}
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		return errRefused
	}
	return nil
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
