package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// Site is nodes, an API, a client and the switch between them.
type Site struct {
	dir, program string
	settings     []string
	sw, client   *host
	api          *api
	nodes        []*node
	look         *Look
}

// node is a host that runs stack-lb, and a server in place of kube-proxy and a pod: it takes what is sent to any
// address of the host.
type node struct {
	*host
	name   string
	lb     *process
	server *http.Server
	served chan struct{}
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
	if s.sw, err = newSwitch(); err != nil {
		return s, err
	}
	apiHost, err := newHost("api")
	if err != nil {
		return s, err
	}
	if s.client, err = newHost("client"); err != nil {
		return s, errors.Join(err, apiHost.close())
	}
	if err := errors.Join(apiHost.plug(s.sw, 2), s.client.plug(s.sw, 3)); err != nil {
		return s, errors.Join(err, apiHost.close())
	}
	if s.api, err = startAPI(ctx, apiHost, dir); err != nil {
		if s.api == nil {
			s.api = &api{host: apiHost}
		}
		return s, err
	}
	var names []string
	for i := range nodes {
		n, err := s.newNode(i)
		if n != nil {
			s.nodes = append(s.nodes, n)
		}
		if err != nil {
			return s, err
		}
		names = append(names, n.name)
	}
	if err := s.api.prepare(ctx, names); err != nil {
		return s, err
	}
	for _, n := range s.nodes {
		if err := s.startLB(n); err != nil {
			return s, err
		}
	}
	s.look, err = newLook(s.client)
	return s, err
}

func (s *Site) newNode(i int) (*node, error) {
	name := fmt.Sprintf("node%d", i+1)
	h, err := newHost(name)
	if err != nil {
		return nil, err
	}
	n := &node{host: h, name: name, served: make(chan struct{})}
	if err := h.plug(s.sw, node0+i); err != nil {
		close(n.served)
		return n, err
	}
	var listener net.Listener
	err = h.in(func() (err error) {
		listener, err = net.Listen("tcp", ":80")
		return err
	})
	if err != nil {
		close(n.served)
		return n, err
	}
	n.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, name)
	})}
	go func() {
		defer close(n.served)
		_ = n.server.Serve(listener) // until it is closed
	}()
	return n, nil
}

// startLB starts stack-lb on a node.
func (s *Site) startLB(n *node) (err error) {
	env := append([]string{
		"STACK_LB_NODE=" + n.name, "STACK_LB_NAMESPACE=" + namespace, "STACK_LB_LOG_FORMAT=text",
		"STACK_LB_KUBECONFIG=" + filepath.Join(s.dir, "kubeconfig"),
	}, s.settings...)
	n.lb, err = n.start(s.dir, n.name, env, s.program)
	return err
}

// restart starts stack-lb where it does not run, connects every node, and waits until the address answers for a while.
func (s *Site) restart(ctx context.Context, ready map[string]bool) error {
	if err := s.api.host.cable(true); err != nil {
		return err
	}
	for _, n := range s.nodes {
		if err := n.cable(true); err != nil {
			return err
		}
		select {
		case <-n.lb.ended:
			if err := s.startLB(n); err != nil {
				return err
			}
		default:
			if err := n.lb.signal(syscall.SIGCONT); err != nil {
				return err
			}
		}
	}
	if err := s.api.endpoints(ctx, "web", ready); err != nil {
		return err
	}
	return s.settle(ctx, 2*time.Second)
}

// settle waits until the address has answered without a break for as long.
func (s *Site) settle(ctx context.Context, long time.Duration) error {
	deadline := time.Now().Add(2 * time.Minute)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		from := time.Now()
		time.Sleep(long)
		if s.look.answeredSince(from) {
			return nil
		}
	}
	return errors.Join(ctx.Err(), fmt.Errorf("%s does not answer: see %s/node*.log", VIP, s.dir))
}

// owner is the node that has the address.
func (s *Site) owner() (*node, error) {
	for _, n := range s.nodes {
		if n.has(VIP) {
			return n, nil
		}
	}
	return nil, errors.New("no node has the address")
}

func (n *node) has(ip string) bool {
	found, err := n.links.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return false
	}
	for _, a := range found {
		if a.IP.String() == ip {
			return true
		}
	}
	return false
}

// Close ends all that runs. Its error says what was left behind.
func (s *Site) Close() error {
	var faults []error
	s.look.stop()
	for _, n := range s.nodes {
		n.lb.kill()
		if n.server != nil {
			_ = n.server.Close()
		}
		<-n.served
		faults = append(faults, n.close())
	}
	if s.api != nil {
		s.api.stop()
		faults = append(faults, s.api.host.close())
	}
	faults = append(faults, s.client.close(), s.sw.close())
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
