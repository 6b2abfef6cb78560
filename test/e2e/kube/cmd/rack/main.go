//go:build linux

// Command rack plays machines that boot while what is behind the service is replaced: each as firmware, iPXE, and the
// system with its agent would, in the network namespace that it is started in. A machine whose boot fails is switched
// on again. It ends when each machine has run its workflow, and says how many boots that took.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// rack is all machines.
type rack struct {
	segment *netboot.Segment
	agent   string        // URL of Tinkerbell's agent
	pause   time.Duration // before each stage of a boot
	start   time.Time

	mu       sync.Mutex
	outcomes map[string]int
}

func main() {
	var r rack
	link := flag.String("interface", "eth0", "`interface` that has all machines' addresses")
	count := flag.Int("count", 10, "how many machines")
	mac := flag.String("mac", "52:54:00:00:01:01", "the first machine's `address`; the last byte counts up")
	ip := flag.String("ip", "192.0.2.111", "its IP `address`; the next ones follow")
	agent := flag.String("agent", "", "`program` of Tinkerbell's agent")
	spread := flag.Duration("spread", 20*time.Second, "the time in which the machines are switched on")
	quiet := flag.Duration("quiet", 2*time.Minute, "how long no machine may get on")
	flag.DurationVar(&r.pause, "pause", time.Second, "what each stage of a boot takes beside the network")
	flag.Parse()
	program.Main("rack", func(ctx context.Context) error {
		return r.run(ctx, *link, *agent, *mac, *ip, *count, *spread, *quiet)
	})
}

func (r *rack) run(
	ctx context.Context, link, agent, mac, ip string, count int, spread, quiet time.Duration,
) error {
	first, err := net.ParseMAC(mac)
	if err != nil {
		return fmt.Errorf("-mac: %w", err)
	}
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return fmt.Errorf("-ip: %w", err)
	}
	if r.segment, err = netboot.OpenSegment(link); err != nil {
		return err
	}
	defer func() { _ = r.segment.Close() }()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("failed to serve the agent: %w", err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, agent) })}
	go func() { _ = server.Serve(listener) }() // until Close
	defer func() { _ = server.Close() }()
	r.agent = "http://" + listener.Addr().String() + "/agent"
	r.start, r.outcomes = time.Now(), map[string]int{}
	ctx, watch := progress.Begin(ctx, progress.Patience{Quiet: quiet})
	defer watch.End()
	faults := make([]error, count)
	var all sync.WaitGroup
	for i := range count {
		m := &machine{rack: r, watch: watch, name: fmt.Sprintf("r%02d", i+1), mac: slices.Clone(first), ip: addr}
		m.mac[5] += byte(i)
		addr = addr.Next()
		all.Go(func() {
			time.Sleep(spread * time.Duration(i) / time.Duration(count))
			faults[i] = m.insist(ctx)
		})
	}
	all.Wait()
	fmt.Printf("boots by how they ended: %v\n", r.outcomes)
	return watch.Why(ctx, errors.Join(faults...))
}

// say prints a line about a machine's boot, and counts how it ended.
func (r *rack) say(name, outcome, detail string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcomes[outcome]++
	fmt.Printf("%5.1f s  %s %s: %s\n", time.Since(r.start).Seconds(), name, outcome, detail)
}
