package feed

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/boot"
)

// mode of a Unix socket: the programs may run as different users. Its directory decides which of them reach it at all.
const mode = 0o622

const (
	// path is where events are posted; another release, another path.
	path = "/v1/events"
	// bodyMost bounds a post, in bytes.
	bodyMost = 128 << 10
	// mostConnections is how many connections are open at once. One too many ends the oldest of a program that is not
	// believed yet.
	mostConnections = 256
	// helloTimeout is how long a program may take to show that it has the key.
	helloTimeout = 5 * time.Second
	// refusalEvery is how often a refusal is logged; all are counted.
	refusalEvery = 10 * time.Second
	// heartbeat is how often a sender tells that it is there, and silence how long it may be quiet.
	heartbeat, silence = 2 * time.Second, 15 * time.Second
)

// head is the first line of a post.
type head struct {
	Session string // of the process
	Program string
	Pod     string
	Number  uint64 // of events that the sender had sent before
	Lost    uint64 // that it has dropped since the last post that was taken
	Now     int64  // its clock: nanoseconds since 1970
	Over    bool   // the program ends in order: it is no longer waited for
}

// ReceiverConfig makes a [Receiver].
type ReceiverConfig struct {
	// Address is host:port, or the path of a Unix socket; KeyFile has the key, and may be empty for the latter.
	Address, KeyFile string
	// Event is told of every event, by several goroutines; an event is valid during the call.
	Event func(*boot.Event)
	// Logger may be nil.
	Logger *slog.Logger
}

// Receiver takes the events of programs that have the key. It is a daemon.Task.
type Receiver struct {
	config   ReceiverConfig
	log      *loglimit.Limiter // of refusals, which anybody can cause
	listener net.Listener
	sources  sources

	refused  atomic.Uint64 // connections and posts
	received atomic.Uint64 // events

	open        sync.WaitGroup // connections
	mu          sync.Mutex
	connections map[net.Conn]*connection
}

// connection is one by which a program posts.
type connection struct {
	opened time.Time
	source *source // nil until its program is believed
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
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	if c.KeyFile != "" {
		listener = tls.NewListener(listener, &tls.Config{
			MinVersion:         tls.VersionTLS13,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return identity(c.KeyFile) },
		})
	}
	log := loglimit.New(c.Logger, 1, refusalEvery)
	return &Receiver{config: c, log: log, listener: listener, connections: map[net.Conn]*connection{}}, nil
}

// Addr is where it listens.
func (r *Receiver) Addr() net.Addr { return r.listener.Addr() }

// Refused is how many connections and posts were not of a program that has the key, or not understood.
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

// connKey is of a request's connection in its context.
type connKey struct{}

// Run implements daemon.Task.
func (r *Receiver) Run(ctx context.Context) error {
	server := &http.Server{
		Handler: r, ReadHeaderTimeout: helloTimeout, ReadTimeout: silence, WriteTimeout: silence, IdleTimeout: silence,
		MaxHeaderBytes: 4 << 10, ErrorLog: slog.NewLogLogger(handshakes{slog.DiscardHandler, r}, 0), ConnState: r.follow,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
	}
	defer r.open.Wait()
	ended, end := context.WithCancel(ctx)
	defer end()
	r.open.Go(func() {
		<-ended.Done()
		// A post that is being taken is taken whole.
		soon, cancel := context.WithTimeout(context.Background(), lastWords)
		defer cancel()
		_ = server.Shutdown(soon)
		_ = server.Close()
	})
	if err := server.Serve(r.listener); ctx.Err() == nil {
		return fmt.Errorf("failed to take posts of boots: %w", err)
	}
	return nil
}

// follow notes connections as they come and go.
func (r *Receiver) follow(conn net.Conn, state http.ConnState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(r.connections) >= mostConnections {
			_ = r.oldestStranger(conn).Close()
		}
		r.open.Add(1)
		r.connections[conn] = &connection{opened: time.Now()}
	case http.StateClosed:
		if s := r.connections[conn]; s != nil && s.source != nil {
			r.sources.end(s.source)
		}
		delete(r.connections, conn)
		r.open.Done()
	case http.StateActive, http.StateIdle, http.StateHijacked:
	}
}

// oldestStranger is the oldest connection of a program that is not believed yet; the newest where there is none.
func (r *Receiver) oldestStranger(newest net.Conn) net.Conn {
	oldest, since := newest, time.Now()
	for conn, s := range r.connections {
		if s.source == nil && s.opened.Before(since) {
			oldest, since = conn, s.opened
		}
	}
	return oldest
}

// source is the program at the other end of a connection, which is believed from now on.
func (r *Receiver) believe(conn net.Conn, h head) *source {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.connections[conn]
	if s == nil { // it has ended
		return &source{head: h}
	}
	if s.source == nil {
		s.source = r.sources.begin(h)
	}
	return s.source
}

// handshakes is the server's log, of which only handshakes that failed matter.
type handshakes struct {
	slog.Handler
	r *Receiver
}

// Enabled implements slog.Handler.
func (handshakes) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler. Whoever opens a connection and says nothing is not refused.
func (h handshakes) Handle(_ context.Context, line slog.Record) error {
	if !strings.HasSuffix(line.Message, "EOF") {
		h.r.refuse(line.Message)
	}
	return nil
}

// refuse counts a refusal and logs it.
func (r *Receiver) refuse(why string) {
	r.refused.Add(1)
	r.log.Warn("events of boots are refused", func() []any { return []any{"error", boot.CleanCut(why, 256)} })
}

var errEvents = errors.New("it is of another release")

// ServeHTTP takes a post.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, bodyMost))
	var long *http.MaxBytesError
	switch {
	case request.URL.Path != path || errors.As(err, &long):
		err = errEvents
	case err == nil:
		err = r.take(request.Context().Value(connKey{}).(net.Conn), body, time.Now())
	default:
		return // the connection has ended
	}
	if err != nil {
		r.refuse(fmt.Sprintf("from %s: %v", request.RemoteAddr, err))
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// take takes the events of a post; none of them where one cannot be read.
func (r *Receiver) take(conn net.Conn, body []byte, now time.Time) error {
	var h head
	line, events, whole := bytes.Cut(body, []byte("\n"))
	if err := json.Unmarshal(line, &h); err != nil || !whole || h.Session == "" {
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
	source := r.believe(conn, h)
	// A post that was sent again has events that were taken before.
	takenBefore, shift := r.sources.post(source, h, count, now)
	for i := uint64(0); len(events) > 0; i++ {
		events, _ = e.Decode(events)
		if i < takenBefore {
			continue
		}
		e.At = min(e.At+shift, now.UnixNano()) // by our clock; the sender's may have been set back since
		twin := r.sources.twins.note(&e, h.Session)
		if !twin {
			r.received.Add(1)
			r.config.Event(&e)
		}
	}
	return nil
}
