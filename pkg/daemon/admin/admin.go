// Package admin is the port through which a program is watched: metrics, probes, and profiles.
package admin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tinkerbell/stack/pkg/daemon"
)

// Options are what a [Server] needs.
type Options struct {
	// Address is where to listen, such as ":9067".
	Address string
	// Registry is what /metrics shows.
	Registry *prometheus.Registry
	// Handlers are further pages of the program, by pattern as http.ServeMux takes it. They are guarded against the pages
	// of others.
	Handlers map[string]http.Handler
	// Hosts are names besides those of the cluster by which browsers may ask for Handlers.
	Hosts []string
}

// Server is a [daemon.Admin].
type Server struct {
	options Options
	mux     *http.ServeMux
	ready   func() error
	opened  net.Listener // by Open; Run takes it
	bound   atomic.Pointer[net.TCPAddr]
}

// Bounds on what a caller of the admin port may hold open.
const (
	headerTimeout   = 5 * time.Second
	idleTimeout     = 60 * time.Second
	shutdownTimeout = 2 * time.Second
)

// NewRegistry makes a registry that shows the runtime, the process, the build and, unless log is nil, what the log has
// lost.
func NewRegistry(log *daemon.Log) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	version, commit := daemon.BuildInfo()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "stack_build_info",
		Help:        "The build of the program, as labels; always 1.",
		ConstLabels: prometheus.Labels{"version": version, "commit": commit},
	})
	build.Set(1)
	registry.MustRegister(
		build,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	if log != nil {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "stack_log_lines_lost_total",
			Help: "Log lines that were not written: the reader of stderr was gone, or too slow.",
		}, func() float64 { return float64(log.Lost()) }))
	}
	return registry
}

// New makes the server; [Server.Run] opens it.
func New(o Options) *Server {
	s := &Server{options: o, mux: http.NewServeMux(), ready: func() error { return errors.New("starting") }}
	metrics := promhttp.HandlerFor(o.Registry, promhttp.HandlerOpts{Registry: o.Registry, EnableOpenMetrics: true})
	s.mux.Handle("GET /metrics", split(guard(o.Hosts, metrics), metrics))
	s.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	s.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.ready()) })
	pages := []string{"/debug/pprof/", "/healthz", "/metrics", "/readyz"}
	forbidden := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "profiles are for the loopback interface: ask by kubectl port-forward", http.StatusForbidden)
	})
	profile := func(page http.HandlerFunc) http.Handler { return split(guard(o.Hosts, page), forbidden) }
	s.mux.Handle("/debug/pprof/", profile(pprof.Index))
	s.mux.Handle("/debug/pprof/cmdline", profile(pprof.Cmdline))
	s.mux.Handle("/debug/pprof/profile", profile(pprof.Profile))
	s.mux.Handle("/debug/pprof/symbol", profile(pprof.Symbol))
	s.mux.Handle("/debug/pprof/trace", profile(pprof.Trace))
	for pattern, handler := range o.Handlers {
		s.mux.Handle(pattern, guard(o.Hosts, handler))
		pages = append(pages, pattern)
	}
	slices.Sort(pages)
	s.mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		for _, page := range pages {
			fmt.Fprintln(w, page)
		}
	})
	return s
}

// Probe implements [daemon.Admin]. It is called before [Server.Run].
func (s *Server) Probe(ready func() error) { s.ready = ready }

// Open implements [daemon.Admin]. It is called before [Server.Run], which does it otherwise.
func (s *Server) Open(ctx context.Context) error {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	listener, err := config.Listen(ctx, "tcp", s.options.Address)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("failed to listen on admin address %q, which is taken by another socket (ss -ltnp names it): %w",
			s.options.Address, err)
	case err != nil:
		return fmt.Errorf("failed to listen on admin address %q: %w", s.options.Address, err)
	}
	s.opened = listener
	return nil
}

// Run implements [daemon.Task].
func (s *Server) Run(ctx context.Context) error {
	if s.opened == nil {
		if err := s.Open(ctx); err != nil {
			return err
		}
	}
	listener := s.opened
	if addr, ok := listener.Addr().(*net.TCPAddr); ok {
		s.bound.Store(addr)
	}
	server := &http.Server{Handler: s.mux, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout}
	served := make(chan error, 1)
	go func() { served <- server.Serve(&bound{Listener: listener, most: maxConnections}) }()
	select {
	case err := <-served:
		return fmt.Errorf("failed to serve admin address %q: %w", s.options.Address, err)
	case <-ctx.Done():
	}
	// The last scrape may end; a profile that runs for minutes may not hold the process.
	shutdownCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(shutdownCtx); err != nil {
		_ = server.Close()
	}
	<-served
	return nil
}

// Ready implements [daemon.Task].
func (s *Server) Ready() error {
	if s.bound.Load() == nil {
		return errors.New("not listening yet")
	}
	return nil
}

// Addr is the address that Run bound, nil before.
func (s *Server) Addr() *net.TCPAddr { return s.bound.Load() }

// String implements [daemon.Task].
func (s *Server) String() string { return "admin" }

// split serves those who ask through the loopback interface by one handler, and others by another. On an operator's
// machine, where kubectl port-forward leads here, the former may be a page of somebody else in the browser; others
// ask for metrics by whatever name they know. A profile costs processor time, and says more of the
// program than its neighbours need to know.
func split(loopback, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if from, err := netip.ParseAddrPort(r.RemoteAddr); err == nil && from.Addr().Unmap().IsLoopback() {
			loopback.ServeHTTP(w, r)
		} else {
			others.ServeHTTP(w, r)
		}
	})
}

// answer writes a probe's answer: "ok", or every reason on a line of its own.
func answer(w http.ResponseWriter, err error) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintln(w, err)
		return
	}
	fmt.Fprintln(w, "ok")
}
