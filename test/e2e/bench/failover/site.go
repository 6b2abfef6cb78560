// Package failover measures how long the address of a Service is away when the node that has it goes, and looks whether
// two nodes ever have it at one time. Nodes with kube-proxy and a pod, a switch, a client, an independent sampler and a
// real kube-apiserver are in network namespaces.
package failover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/tinkerbell/stack/test/e2e/arp"
	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// Setup says what a site has.
type Setup struct {
	Nodes int
	// Addresses is how many there are, each of a Service of its own.
	Addresses int
	// Proxy is kube-proxy's mode.
	Proxy    string
	Balancer Balancer
}

// Site is nodes, an API, a client, a sampler, and the switch between them.
type Site struct {
	dir       string
	balancer  Balancer
	proxy     string // kube-proxy's mode; that of IPVS refuses echo requests
	addresses []netip.Addr
	sw        *host
	hosts     []*host // that are no nodes
	client    *host
	watcher   *host // of the sampler
	api       *api
	nodes     []*node
	look      *Look
	sampler   *arp.Sampler
}

// NewSite builds a site with its balancer on each node. Close ends it.
func NewSite(ctx context.Context, dir string, setup Setup) (s *Site, err error) {
	s = &Site{dir: dir, balancer: setup.Balancer, proxy: setup.Proxy, addresses: addresses(setup.Addresses)}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
			s = nil
		}
	}()
	programs, err := Cached()
	if err != nil {
		return s, err
	}
	if _, err := exec.LookPath("nft"); err != nil && setup.Proxy == "nftables" {
		return s, errors.New("no nft, which kube-proxy needs (Debian package nftables)")
	}
	if s.sw, err = newSwitch(); err != nil {
		return s, err
	}
	var apiHost *host
	for i, h := range []**host{&apiHost, &s.client, &s.watcher} {
		if *h, err = newHost([]string{"api", "client", "sampler"}[i]); err != nil {
			return s, err
		}
		s.hosts = append(s.hosts, *h)
		if err := (*h).plug(s.sw, 2+i); err != nil {
			return s, err
		}
	}
	if s.api, err = startAPI(ctx, apiHost, dir); err != nil {
		return s, err
	}
	names := map[[6]byte]string{}
	for i := range setup.Nodes {
		n, err := newNode(s.sw, i)
		s.nodes = append(s.nodes, n)
		if err != nil {
			return s, err
		}
		names[n.mac], names[n.spare] = n.name, n.name
		if err := s.lead(n); err != nil {
			return s, err
		}
	}
	if err := s.api.prepare(ctx, s.nodes); err != nil {
		return s, err
	}
	if s.balancer.prepare != nil {
		if err := s.balancer.prepare(ctx, s); err != nil {
			return s, fmt.Errorf("failed to prepare %s: %w", s.balancer.name, err)
		}
	}
	for _, n := range s.nodes {
		if err := errors.Join(n.startProxy(ctx, dir, programs.proxy, setup.Proxy), s.startLB(ctx, n)); err != nil {
			return s, err
		}
	}
	if s.sampler, err = s.watcher.sample(link, names, s.addresses...); err != nil {
		return s, err
	}
	s.look, err = newLook(s.client)
	return s, err
}

// addresses are those of Services: VIP, and others.
func addresses(count int) []netip.Addr {
	all := []netip.Addr{netip.MustParseAddr(VIP)}
	for next := netip.MustParseAddr(vip1); len(all) < count; next = next.Next() {
		all = append(all, next)
	}
	return all
}

// lead leads a node to the API.
func (s *Site) lead(n *node) (err error) {
	port := gatePort + n.number
	n.gate, err = newGate(s.api.host, fmt.Sprintf("%s:%d", apiIP, port), fmt.Sprintf("%s:%d", apiIP, apiPort))
	return errors.Join(err, writeKubeconfig(s.dir, n.name, "lb", port))
}

// Open makes the Services, and waits until their addresses answer.
func (s *Site) Open(ctx context.Context) error {
	if err := s.publish(ctx); err != nil {
		return err
	}
	return s.restart(ctx)
}

// allReady are the pods, each of which is ready.
func (s *Site) allReady() map[*node]podState {
	pods := map[*node]podState{}
	for _, n := range s.nodes {
		pods[n] = podReady
	}
	return pods
}

// restart starts the balancer where it does not run, connects every node, has all pods ready, and waits until the
// addresses answer.
func (s *Site) restart(ctx context.Context) error {
	if err := s.api.host.cable(true); err != nil {
		return err
	}
	for _, n := range s.nodes {
		if err := s.revive(ctx, n); err != nil {
			return err
		}
	}
	if err := s.api.endpoints(ctx, s.allReady()); err != nil {
		return err
	}
	if err := s.ready(ctx, s.nodes...); err != nil {
		return err
	}
	// The nodes look at the link once a second.
	return s.settle(ctx, 2*time.Second)
}

// ready waits until the balancer is ready on nodes.
func (s *Site) ready(ctx context.Context, nodes ...*node) error {
	for _, n := range nodes {
		if s.balancer.ready == nil {
			break
		}
		said := process.LastLine(s.balancer.name, filepath.Join(s.dir, n.name+".log"))
		patience := progress.Patience{Quiet: time.Minute, Signs: []func() string{said}, Waited: n.lb.Starved}
		err := progress.Until(ctx, patience, 50*time.Millisecond, func(ctx context.Context) error {
			return s.balancer.ready(ctx, n)
		})
		if err != nil {
			return fmt.Errorf("failed to start %s on %s, see %s: %w", s.balancer.name, n.name, s.dir, err)
		}
	}
	return nil
}

// settle waits until the addresses have answered for as long.
func (s *Site) settle(ctx context.Context, long time.Duration) error {
	deadline := time.Now().Add(2 * time.Minute)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		from := time.Now()
		if err := sleep(ctx, long); err != nil {
			return err
		}
		if s.answers(from) {
			return nil
		}
	}
	return errors.Join(ctx.Err(), fmt.Errorf("%s does not answer: see %s/node*.log", VIP, s.dir))
}

// answers tells whether the addresses have answered since then without a break, but for those of a busy machine.
func (s *Site) answers(from time.Time) bool {
	for _, log := range s.sampler.Since(from) {
		if log.NoOwner > 2 || log.NoOwner == log.Probes {
			return false
		}
	}
	return s.look.answers(from, s.proxy != "ipvs" && !s.balancer.silent)
}

// owner is the node that has most addresses.
func (s *Site) owner() (*node, error) {
	has := s.sampler.Owners()
	owner := slices.MaxFunc(s.nodes, func(a, b *node) int { return has[a.name] - has[b.name] })
	if has[owner.name] == 0 {
		return nil, fmt.Errorf("no node has the address: %v", has)
	}
	return owner, nil
}

// others are the nodes but one.
func (s *Site) others(but *node) []*node {
	return slices.DeleteFunc(slices.Clone(s.nodes), func(n *node) bool { return n == but })
}

// Close ends all that runs. Its error says what was left behind.
func (s *Site) Close() error {
	var faults []error
	s.look.stop()
	s.sampler.Stop()
	for _, n := range s.nodes {
		faults = append(faults, n.stop())
	}
	s.api.stop()
	for _, h := range append(s.hosts, s.sw) {
		faults = append(faults, h.close())
	}
	return errors.Join(faults...)
}

// Logs are the last lines of each node's stack-lb.
func (s *Site) Logs() string {
	all := ""
	for _, n := range s.nodes {
		text, _ := os.ReadFile(filepath.Join(s.dir, n.name+".log"))
		all += n.name + ":\n" + string(text[max(0, len(text)-3000):]) + "\n"
	}
	return all
}
