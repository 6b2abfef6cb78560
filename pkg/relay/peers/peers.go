// Package peers lets the replicas on a VLAN find each other, and the node that has the stack's address there. Each
// replica broadcasts hellos as Ethernet frames on its listeners, and looks by ARP or neighbour discovery for another
// station with the address. Package group decides which replica relays; docs/design/relay-replicas.md has the reasons.
package peers

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/relay/group"
	"github.com/tinkerbell/stack/pkg/relay/links"
)

// Config describes the replicas.
type Config struct {
	// Listeners are the interfaces on the VLANs that the replicas share. They have the same names everywhere. None: there
	// are no other replicas.
	Listeners []string
	// Address is the stack's, of either family: the replica whose node has it relays. Unset: the replicas share the
	// machines.
	Address netip.Addr
	// Name tells the replicas of one installation from those of another one on the same VLAN.
	Name string
	// Key signs hellos. Without it, the hellos of any host on the VLAN are believed.
	Key []byte
	// Able returns an error while this replica cannot relay. It must not block.
	Able func() error

	// Logger may be nil.
	Logger *slog.Logger
	// Registerer takes the metrics. It may be nil.
	Registerer prometheus.Registerer
}

// Peers is a daemon.Task.
type Peers struct {
	config     Config
	start      time.Time
	logLimiter *loglimit.Limiter
	metrics    *metrics
	stations   map[string]*station
}

// New makes the groups. It opens nothing yet.
func New(config Config) (*Peers, error) {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if len(config.Listeners) == 0 {
		config.Registerer = nil
	}
	metrics, err := newMetrics(config.Registerer)
	if err != nil {
		return nil, fmt.Errorf("failed to register metrics of replicas: %w", err)
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	p := &Peers{
		config: config, start: time.Now(), logLimiter: loglimit.New(config.Logger, 1, time.Minute), metrics: metrics,
		stations: map[string]*station{},
	}
	for _, name := range config.Listeners {
		if p.stations[name], err = newStation(p, name, binary.BigEndian.Uint64(id[:])); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Group is that of a listener, nil where there is none.
func (p *Peers) Group(listener string) *group.Group {
	if s := p.stations[listener]; s != nil {
		return s.group
	}
	return nil
}

// WarnTakenOver logs that a listener relays a machine which is another replica's to relay. now is the limiter's clock.
func WarnTakenOver(limiter *loglimit.Limiter, now int64, listener string) {
	limiter.WarnAt(now, "relays a machine for another replica", func() []any {
		return []any{"listener", listener, "remedy", "look for the other replica's server and network: " +
			"it is there, and the machine still waits; a machine that no server knows waits, too"}
	})
}

// now is the groups' clock: nanoseconds since the start.
func (p *Peers) now() int64 { return int64(time.Since(p.start)) }

// Run implements daemon.Task: it sends hellos until ctx is done, and a goodbye then.
func (p *Peers) Run(ctx context.Context) error {
	if len(p.stations) == 0 {
		<-ctx.Done()
		return nil
	}
	tasks, ctx := errgroup.WithContext(ctx)
	tasks.Go(func() error {
		return links.Watch(ctx, func() {
			for _, s := range p.stations {
				s.wake()
			}
		})
	})
	for _, s := range p.stations {
		tasks.Go(func() error { return s.run(ctx) })
	}
	return tasks.Wait()
}

// Ready implements daemon.Task: this replica has had time to receive the others' hellos.
func (p *Peers) Ready() error {
	var faults []error
	for _, name := range p.config.Listeners {
		if !p.stations[name].settled.Load() {
			faults = append(faults, fmt.Errorf("listener %s: listens for other replicas", name))
		}
	}
	return errors.Join(faults...)
}

// String implements daemon.Task.
func (p *Peers) String() string { return "peers" }
