package failover

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Cost is what the balancers of all nodes cost while nothing happens.
type Cost struct {
	Seconds float64 `json:"seconds"`
	// CPU is the part of a core, and MiB the memory, of the node that needs most.
	CPU float64 `json:"cpu_cores"`
	MiB float64 `json:"memory_mib"`
	// ARP are frames a second that the node which sends most sends to all.
	ARP float64 `json:"arp_per_s"`
	// Writes are those of the API a second, Events what its watches told of leases a second, and Watches how many there
	// are of balancers and all others.
	Writes  float64 `json:"api_writes_per_s"`
	Events  float64 `json:"lease_events_per_s"`
	Watches float64 `json:"watches"`
}

// meter is what has been counted until a time.
type meter struct {
	at             time.Time
	cpu            map[*node]float64
	frames         map[string]int
	writes, events float64
	watches        float64
}

func (s *Site) meter(ctx context.Context) (m meter, err error) {
	m = meter{at: time.Now(), cpu: map[*node]float64{}, frames: s.sampler.Frames()}
	for _, n := range s.nodes {
		m.cpu[n] = n.lb.CPU()
	}
	text, err := s.api.ask(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue
		}
		has := func(label string) bool { return strings.Contains(name, label) }
		ours := has(`resource="leases"`) || has(`resource="services"`) || has(`resource="events"`)
		switch metric, _, _ := strings.Cut(name, "{"); metric {
		case "apiserver_request_total":
			if ours && !has(`verb="WATCH"`) && !has(`verb="LIST"`) && !has(`verb="GET"`) {
				m.writes += number
			}
		case "apiserver_watch_events_total":
			if has(`resource="leases"`) || has(`kind="Lease"`) {
				m.events += number
			}
		case "apiserver_longrunning_requests":
			if has(`verb="WATCH"`) {
				m.watches += number
			}
		}
	}
	return m, nil
}

// peak is the most memory, in MiB, that a balancer has had resident since it began.
func (s *Site) peak() (mib float64) {
	for _, n := range s.nodes {
		if kib, err := n.lb.Peak(); err == nil { // it runs
			mib = max(mib, kib/1024)
		}
	}
	return mib
}

// cost is what has come since a time.
func (s *Site) cost(ctx context.Context, from meter) (*Cost, error) {
	to, err := s.meter(ctx)
	if err != nil {
		return nil, err
	}
	long := to.at.Sub(from.at).Seconds()
	c := &Cost{
		Seconds: long, Watches: to.watches,
		Writes: (to.writes - from.writes) / long, Events: (to.events - from.events) / long,
	}
	for _, n := range s.nodes {
		c.CPU = max(c.CPU, (to.cpu[n]-from.cpu[n])/long)
		c.MiB = max(c.MiB, n.lb.Memory()/1024)
		c.ARP = max(c.ARP, float64(to.frames[n.name]-from.frames[n.name])/long)
	}
	return c, nil
}
