package failover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/process"
)

// node is a host with stack-lb, kube-proxy, and one pod that serves HTTP.
type node struct {
	*host
	number int
	name   string
	mac    [6]byte
	spare  [6]byte // of its second card
	pod    *host
	gate   *gate // to the API
	proxy  *process.Process
	lb     *process.Process
	server *http.Server
	served chan struct{}
}

// newNode makes a node on the switch. The number begins at 0.
func newNode(sw *host, number int) (n *node, err error) {
	n = &node{number: number, name: fmt.Sprintf("node%d", number+1), served: make(chan struct{})}
	close(n.served)
	if n.host, err = newHost(n.name); err != nil {
		return n, err
	}
	if n.pod, err = newHost("pod of " + n.name); err != nil {
		return n, err
	}
	err = errors.Join(n.plug(sw, node0+number), n.wire(spare, n.name+"b"), n.attach(n.pod, number))
	if err != nil {
		return n, err
	}
	if n.mac, err = n.host.mac(link); err != nil {
		return n, err
	}
	if n.spare, err = n.host.mac(spare); err != nil {
		return n, err
	}
	var listener net.Listener
	err = n.pod.in(func() (err error) {
		listener, err = net.Listen("tcp", ":80")
		return err
	})
	if err != nil {
		return n, err
	}
	n.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, n.name)
	}), ReadHeaderTimeout: time.Minute}
	n.served = make(chan struct{})
	go func() {
		defer close(n.served)
		_ = n.server.Serve(listener) // until it is closed
	}()
	return n, nil
}

// address is the node's, on the switch.
func (n *node) address() string { return fmt.Sprintf("192.0.2.%d", node0+n.number) }

// startProxy starts kube-proxy.
func (n *node) startProxy(ctx context.Context, dir, program, mode string) (err error) {
	n.proxy, err = n.start(ctx, dir, n.name+"-kube-proxy", nil, nil, program, "--ipvs-strict-arp",
		"--kubeconfig", filepath.Join(dir, "kubeconfig-admin"), "--proxy-mode", mode,
		"--hostname-override", n.name, "--cluster-cidr", "10.244.0.0/16,fd00:244::/32",
		"--conntrack-max-per-core", "0", "--conntrack-tcp-timeout-established", "0",
		"--conntrack-tcp-timeout-close-wait", "0")
	return err
}

// get asks a program of the node by HTTP.
func (n *node) get(ctx context.Context, url string) error {
	return n.in(func() error {
		client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
				err = n.in(func() error {
					conn, err = new(net.Dialer).DialContext(ctx, network, address)
					return err
				})
				return conn, err
			}}}
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			err = errors.New(response.Status)
		}
		return errors.Join(err, response.Body.Close())
	})
}

// revive connects the node, and has stack-lb run.
func (s *Site) revive(ctx context.Context, n *node) error {
	n.gate.set(way{})
	if err := n.cable(true); err != nil {
		return err
	}
	select {
	case <-n.lb.Ended():
		return s.startLB(ctx, n)
	default:
		return n.lb.Signal(syscall.SIGCONT)
	}
}

// stop ends what runs on the node.
func (n *node) stop() error {
	n.lb.Kill()
	n.proxy.Kill()
	n.gate.close()
	if n.server != nil {
		_ = n.server.Close()
	}
	<-n.served
	return errors.Join(n.pod.close(), n.close())
}
