// Package failover measures how long the address of a Service is away when the node that has it goes, and looks whether
// two nodes ever have it at one time. Nodes with kube-proxy and a pod, a switch, a client, an independent sampler and a
// real kube-apiserver are in network namespaces.
package failover

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tinkerbell/stack/test/e2e/arp"
	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// Site is nodes, an API, a client, a sampler, and the switch between them.
type Site struct {
	dir, program string
	settings     []string
	sw           *host
	hosts        []*host // that are no nodes
	client       *host
	api          *api
	nodes        []*node
	look         *Look
	sampler      *arp.Sampler
}

// NewSite builds a site with stack-lb on each node; settings are further variables of it. Close ends it.
func NewSite(ctx context.Context, dir, program string, nodes int, settings ...string) (s *Site, err error) {
	s = &Site{dir: dir, program: program, settings: settings}
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
	if s.sw, err = newSwitch(); err != nil {
		return s, err
	}
	var apiHost, watcher *host
	for i, h := range []**host{&apiHost, &s.client, &watcher} {
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
	for i := range nodes {
		n, err := newNode(s.sw, i)
		s.nodes = append(s.nodes, n)
		if err != nil {
			return s, err
		}
		names[n.mac] = n.name
	}
	if err := s.api.prepare(ctx, s.nodes); err != nil {
		return s, err
	}
	for _, n := range s.nodes {
		if err := errors.Join(n.startProxy(ctx, dir, programs.proxy), s.startLB(ctx, n)); err != nil {
			return s, err
		}
	}
	if s.sampler, err = watcher.sample(link, names); err != nil {
		return s, err
	}
	s.look, err = newLook(s.client)
	return s, err
}

// Open makes the Service, and waits until its address answers.
func (s *Site) Open(ctx context.Context) error {
	if err := s.api.do(ctx, http.MethodPost, servicesPath, webService()); err != nil {
		return err
	}
	return s.restart(ctx)
}

// startLB starts stack-lb on a node.
func (s *Site) startLB(ctx context.Context, n *node) (err error) {
	env := append([]string{
		"STACK_LB_NODE=" + n.name, "STACK_LB_NAMESPACE=" + namespace, "STACK_LB_LOG_FORMAT=text",
		"STACK_LB_KUBECONFIG=" + filepath.Join(s.dir, "kubeconfig"),
	}, s.settings...)
	n.lb, err = n.start(ctx, s.dir, n.name, nil, env, s.program)
	return err
}

// allReady are the pods, each of which is ready.
func (s *Site) allReady() map[*node]podState {
	pods := map[*node]podState{}
	for _, n := range s.nodes {
		pods[n] = podReady
	}
	return pods
}

// restart starts stack-lb where it does not run, connects every node, has all pods ready, and waits until the address
// answers.
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

// ready waits until stack-lb is ready on nodes.
func (s *Site) ready(ctx context.Context, nodes ...*node) error {
	for _, n := range nodes {
		patience := progress.Patience{
			Quiet: time.Minute, Signs: []func() string{process.LastLine("stack-lb", filepath.Join(s.dir, n.name+".log"))},
			Waited: n.lb.Starved,
		}
		err := progress.Until(ctx, patience, 50*time.Millisecond, func(ctx context.Context) error {
			if !n.ready(ctx) {
				return errors.New("it is not ready")
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("failed to start stack-lb on %s, see %s: %w", n.name, s.dir, err)
		}
	}
	return nil
}

// settle waits until the address has answered for as long.
func (s *Site) settle(ctx context.Context, long time.Duration) error {
	deadline := time.Now().Add(2 * time.Minute)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		from := time.Now()
		time.Sleep(long)
		if s.look.answers(from) {
			return nil
		}
	}
	return errors.Join(ctx.Err(), fmt.Errorf("%s does not answer: see %s/node*.log", VIP, s.dir))
}

// owner is the node that has the address.
func (s *Site) owner() (*node, error) {
	name := s.sampler.Owner()
	i := slices.IndexFunc(s.nodes, func(n *node) bool { return n.name == name })
	if i < 0 {
		return nil, fmt.Errorf("no node has the address (the last owner is %q)", name)
	}
	return s.nodes[i], nil
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
