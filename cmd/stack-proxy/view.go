package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/boot/journal"
	"github.com/tinkerbell/stack/pkg/boot/page"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/record"
)

// BootsConfig is what STACK_PROXY_BOOTS* variables set.
type BootsConfig struct {
	Boots         bool   `default:"false" desc:"show machines that boot on the admin port: /boots, /api/v1/boots (docs/boots.md)"`
	BootsSocket   string `split_words:"true" desc:"Unix socket by which dhcp-relay tells of DHCP, in a directory that only the two mount; default nothing is known of DHCP"`
	BootsPod      string `split_words:"true" desc:"name of this replica; default the host name"`
	BootsReplicas string `split_words:"true" desc:"host:port of the replicas' admin ports, a headless Service: their machines are shown too"`
	BootsRelay    string `split_words:"true" desc:"host:port of dhcp-relay's admin port, for the packets of a machine"`
	BootsMemory   int    `split_words:"true" default:"64" desc:"MiB that what is kept of machines may take, some 10000 machines in 64; those that were silent longest go first"`
}

const (
	mostMemory = 1 << 20 // MiB
	// machinesEach is how many machines are kept in a MiB: those of a rack take some 6 KiB each with their boots.
	machinesEach = 160
)

// faults finds settings that cannot be.
func (c *BootsConfig) faults(fault func(variable, format string, args ...any)) {
	if c.BootsMemory < 1 || c.BootsMemory > mostMemory {
		fault("BOOTS_MEMORY", "%d: not within 1 and %d", c.BootsMemory, mostMemory)
	}
	for variable, at := range map[string]string{"BOOTS_REPLICAS": c.BootsReplicas, "BOOTS_RELAY": c.BootsRelay} {
		if _, _, err := splitPort(at); at != "" && err != nil {
			fault(variable, "%q: %w", at, err)
		}
	}
}

// splitPort reads host:port.
func splitPort(at string) (host string, port uint16, err error) {
	host, text, err := net.SplitHostPort(at)
	if err != nil {
		return "", 0, err
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 || host == "" {
		return "", 0, errors.New("not host:port")
	}
	return host, uint16(n), nil
}

// view is what is shown of machines that boot: what the proxy tells it, and what keeps and shows that. Its zero value
// is off.
type view struct {
	sink    record.Sink
	relayed func(*boot.Event) // takes the events of dhcp-relay
	helpers []daemon.Task
	server  *page.Server
}

// Room of the queues, in events: a tenth of a second of a busy proxy's, and of its syslog, which may be a flood.
const (
	eventRoom = 4096
	lineRoom  = 1024
	// queuesMemory is what they take, in bytes, with those that wait for others of earlier times.
	queuesMemory = 10 << 20
)

// bootsMemory is what the view may take, in bytes: what the journal keeps, and the queues before it.
func (c *BootsConfig) bootsMemory() int64 {
	if !c.Boots {
		return 0
	}
	return int64(c.BootsMemory)<<20 + queuesMemory
}

// newView makes the view, where it is asked for. Nothing that is wrong with it keeps the proxy from its work.
func newView(c *config, getenv func(string) string, logger *slog.Logger, registry prometheus.Registerer) (view, error) {
	if !c.Boots {
		return view{}, nil
	}
	if c.BootsPod == "" {
		c.BootsPod, _ = os.Hostname()
	}
	elsewhere, err := newSignals(c, getenv, logger, registry)
	if err != nil {
		return view{}, err
	}
	j := journal.New(journal.Options{
		Limits: journal.Limits{Machines: c.BootsMemory * machinesEach, Bytes: c.BootsMemory << 20},
		Pod:    c.BootsPod, Others: c.BootsReplicas != "", Hardware: elsewhere.lookup(), Changed: elsewhere.changed,
	})
	requests, lines, relayed := boot.NewQueue(eventRoom), boot.NewQueue(lineRoom), boot.NewQueue(eventRoom)
	recorder := feed.NewMerger(j.Record, j.Tick, relayed, requests, lines)
	boots := record.NewBoots(requests.Put, lines.Put)
	for source, dropped := range map[string]func() uint64{
		"requests": requests.Dropped, "syslog": lines.Dropped, "relay": relayed.Dropped, "client": boots.Spared,
	} {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "stack_proxy_boot_events_dropped_total",
			Help: "Events of boots that were not kept: more than there is room for, by where they came from; or, as " +
				"client, more of one client than tells anything.",
			ConstLabels: prometheus.Labels{"source": source},
		}, func() float64 { return float64(dropped()) }))
	}
	server := page.New(page.Options{
		Journal: j, Pod: c.BootsPod, Replicas: c.replicas(), Relay: c.BootsRelay, Local: fromHere, Logger: logger,
	})
	v := view{
		sink:    boots.Record,
		relayed: relayed.Put,
		helpers: append(elsewhere.of(j, recorder, logger, registry), server),
		server:  server,
	}
	if c.BootsSocket == "" {
		return v, nil
	}
	receiver, err := feed.Listen(c.BootsSocket, v.relayed)
	if err != nil {
		logger.Warn("nothing is known of DHCP", "error", err.Error())
		return v, nil
	}
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "stack_proxy_boot_datagrams_refused_total",
		Help: "Datagrams at the socket of boots that dhcp-relay does not send.",
	}, func() float64 { return float64(receiver.Refused()) }))
	v.helpers = append(v.helpers, receiver)
	return v, nil
}

// pages are those of the admin port, the view's among them.
func (v *view) pages(handlers map[string]http.Handler) map[string]http.Handler {
	if v.server != nil {
		maps.Copy(handlers, v.server.Handlers())
	}
	return handlers
}

// replicas finds the admin ports of all replicas; nil where there are no others.
func (c *config) replicas() func(context.Context) ([]netip.AddrPort, error) {
	host, port, err := splitPort(c.BootsReplicas)
	if err != nil {
		return nil
	}
	resolver := &endpoint.Resolver{}
	return func(ctx context.Context) ([]netip.AddrPort, error) {
		found, _, err := resolver.Lookup(ctx, host)
		if err != nil {
			return nil, fmt.Errorf("failed to find replicas: %w", err)
		}
		all := make([]netip.AddrPort, len(found))
		for i, addr := range found {
			all[i] = netip.AddrPortFrom(addr, port)
		}
		return all, nil
	}
}

// fromHere tells a request of this network namespace: kubectl port-forward comes from localhost. The rest of 127/8 does
// not count: a service mesh hands over other pods' requests from there.
func fromHere(r *http.Request) bool {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	addr := peer.Addr().Unmap()
	return addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || addr == netip.IPv6Loopback()
}
