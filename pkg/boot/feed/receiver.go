package feed

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
)

// mode of a Unix socket: the programs may run as different users. Who may reach it at all is decided by its directory.
const mode = 0o622

const (
	// mostStreams is how many streams are open at once. One too many ends the oldest of a program that is not believed
	// yet.
	mostStreams = 256
	// helloTimeout is how long a program may take to say who it is.
	helloTimeout = 5 * time.Second
	// refusalEvery is how often a refusal is logged; all are counted.
	refusalEvery = 10 * time.Second
)

// ReceiverConfig makes a [Receiver].
type ReceiverConfig struct {
	// Address is host:port, or the path of a Unix socket; KeyFile has the key, and may be empty for the latter.
	Address, KeyFile string
	// Record is told of every event, by several goroutines; an event is valid during the call.
	Record func(*boot.Event)
	// Logger may be nil.
	Logger *slog.Logger
}

// Receiver takes the events of programs that have the key. It is a daemon.Task.
type Receiver struct {
	config   ReceiverConfig
	log      *slog.Logger
	listener net.Listener
	sources  sources

	refused  atomic.Uint64 // streams
	received atomic.Uint64 // events

	mu      sync.Mutex
	streams map[net.Conn]time.Time // when it was opened; zero once the program has shown that it has the key
	warned  time.Time
}

// Listen opens the address; a Unix socket in place of one that a process before us has left there.
func Listen(c ReceiverConfig) (*Receiver, error) {
	network := networkOf(c.Address)
	if network == "unix" {
		if err := remove(c.Address); err != nil {
			return nil, err
		}
	}
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	listener, err := config.Listen(context.Background(), network, c.Address)
	if err != nil {
		return nil, fmt.Errorf("failed to listen for events of boots: %w", err)
	}
	if network == "unix" {
		if err := os.Chmod(c.Address, mode); err != nil {
			_ = listener.Close()
			return nil, fmt.Errorf("failed to open the socket of boots to the other programs: %w", err)
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Receiver{config: c, log: c.Logger, listener: listener, streams: map[net.Conn]time.Time{}}, nil
}

// Addr is where it listens.
func (r *Receiver) Addr() net.Addr { return r.listener.Addr() }

// Refused is how many streams were not of a program that has the key, or not understood.
func (r *Receiver) Refused() uint64 { return r.refused.Load() }

// Received is how many events came.
func (r *Receiver) Received() uint64 { return r.received.Load() }

// Lost is how many events the programs have dropped.
func (r *Receiver) Lost() uint64 { return r.sources.lost.Load() }

// Twins is how many events were left out because another relay had told of the same packet.
func (r *Receiver) Twins() uint64 { return r.sources.twins.dropped.Load() }

// Sources are the programs that are heard, or were.
func (r *Receiver) Sources() []Source { return r.sources.list() }

// Close gives up a receiver that never ran.
func (r *Receiver) Close() error { return r.listener.Close() }

// Ready implements daemon.Task.
func (r *Receiver) Ready() error { return nil }

// String implements daemon.Task.
func (r *Receiver) String() string { return "events of boots" }

// Run implements daemon.Task.
func (r *Receiver) Run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	stop := context.AfterFunc(ctx, func() { _ = r.listener.Close() })
	defer stop()
	defer r.closeAll()
	for {
		conn, err := r.listener.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = conn.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("failed to take streams of boots: %w", err)
		case err != nil: // the client has gone, or descriptors are short
			time.Sleep(PollEvery)
			continue
		}
		r.add(conn)
		group.Go(func() {
			defer r.drop(conn)
			r.serve(conn)
		})
	}
}

// add counts a stream in. With too many it ends the oldest whose program is not believed yet; else this one.
func (r *Receiver) add(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.streams) >= mostStreams {
		var oldest net.Conn
		for other, since := range r.streams {
			if !since.IsZero() && (oldest == nil || since.Before(r.streams[oldest])) {
				oldest = other
			}
		}
		if oldest != nil {
			_ = oldest.Close()
		} else {
			_ = conn.Close()
		}
	}
	r.streams[conn] = time.Now()
}

func (r *Receiver) believe(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.streams[conn] = time.Time{}
}

func (r *Receiver) drop(conn net.Conn) {
	_ = conn.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.streams, conn)
}

func (r *Receiver) closeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn := range r.streams {
		_ = conn.Close()
	}
}

// serve takes one stream, until it ends.
func (r *Receiver) serve(conn net.Conn) {
	var greeting [len(magic) + nonceSize]byte
	copy(greeting[:], magic)
	_, _ = rand.Read(greeting[len(magic):]) // it never fails
	key, err := readKey(r.config.KeyFile)
	if err != nil {
		if r.mayTell() {
			r.log.Error("failed to take events of boots", "from", conn.RemoteAddr().String(), "error", err.Error())
		}
		return
	}
	_ = conn.SetDeadline(time.Now().Add(helloTimeout))
	if _, err := conn.Write(greeting[:]); err != nil {
		return
	}
	s := newSigner(key, [nonceSize]byte(greeting[len(magic):]))
	body, err := s.read(conn, make([]byte, helloMost+codeSize))
	h, ok := parseHello(body)
	if err == nil && !ok {
		err = errEvents
	}
	if !r.answer(conn, err) {
		return
	}
	r.believe(conn)
	source := r.sources.begin(h)
	defer r.sources.end(source)
	buffer := make([]byte, bodyMost+codeSize)
	for {
		_ = conn.SetDeadline(time.Now().Add(silence))
		if body, err = s.read(conn, buffer); err == nil {
			err = r.takeFrame(source, body, time.Now())
		}
		if !r.answer(conn, err) {
			return
		}
	}
}

var errEvents = errors.New("it is of another release")

// answer answers a frame, and reports whether it was taken.
func (r *Receiver) answer(conn net.Conn, err error) bool {
	if err == nil {
		_, err := conn.Write([]byte{taken})
		return err == nil
	}
	if !errors.Is(err, errForged) && !errors.Is(err, errEvents) {
		return false // the stream has ended
	}
	r.refused.Add(1)
	_, _ = conn.Write([]byte{refused})
	if r.mayTell() {
		r.log.Warn("events of boots are refused", "from", conn.RemoteAddr().String(), "error", err.Error())
	}
	return false
}

// mayTell reports whether it may be logged that a stream is not taken: at times only, since anybody can open streams.
func (r *Receiver) mayTell() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if now.Sub(r.warned) < refusalEvery {
		return false
	}
	r.warned = now
	return true
}

// takeFrame takes the events of a frame; none of them where one cannot be read.
func (r *Receiver) takeFrame(source *source, body []byte, now time.Time) error {
	h, events, ok := parseHead(body)
	if !ok {
		return errEvents
	}
	var e boot.Event
	count := uint64(0)
	for rest := events; len(rest) > 0; count++ {
		var err error
		if rest, err = e.Decode(rest); err != nil {
			return errEvents
		}
	}
	known, ahead := r.sources.frame(source, h, count, now)
	for i := uint64(0); len(events) > 0; i++ {
		events, _ = e.Decode(events)
		if i < known {
			continue
		}
		e.At = min(e.At+ahead, now.UnixNano()) // by our clock; the sender's may have been set back since
		if !r.sources.twins.is(&e, source.hello.session) {
			r.received.Add(1)
			r.config.Record(&e)
		}
	}
	return nil
}
