package failover

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/process"
)

// Balancer is a program that gives nodes the addresses of Services.
type Balancer struct {
	name string
	// command is what runs on a node, and its variables.
	command func(s *Site, n *node) (args, env []string, err error)
	// ready says whether it does its work on a node. By default it does as soon as it has started.
	ready func(ctx context.Context, n *node) error
	// service is that for an address: its first one is of the site's first address.
	service func(s *Site, number int) object
	// prepare gives the API what the balancer needs. By default that is nothing.
	prepare func(ctx context.Context, s *Site) error
	// silent says that nobody answers echo requests to the addresses.
	silent bool
	// tells says that it writes the status of Services, without which kube-proxy forwards nothing.
	tells bool
}

// StackLB is stack-lb with variables beyond those it needs.
func StackLB(program string, settings ...string) Balancer {
	return Balancer{
		name: "stack-lb",
		command: func(s *Site, n *node) ([]string, []string, error) {
			return []string{program}, append([]string{
				"STACK_LB_NODE=" + n.name,
				"STACK_LB_KUBECONFIG=" + filepath.Join(s.dir, "kubeconfig-"+n.name),
			}, settings...), nil
		},
		ready: func(ctx context.Context, n *node) error { return n.get(ctx, "http://127.0.0.1:9071/readyz") },
		service: func(s *Site, number int) object {
			addresses := s.addresses[number].String()
			if number == 0 {
				addresses += "," + VIP6
			}
			service := service(number, map[string]string{"stack-lb.tinkerbell.org/addresses": addresses})
			service["spec"].(object)["loadBalancerClass"] = "tinkerbell.org/stack-lb"
			return service
		},
		tells: true,
	}
}

// Keepalived is Debian's, with VRRP's advertisement each second, as it comes. A node that comes back does not take the
// addresses.
func Keepalived() (Balancer, error) {
	path, err := process.Find("keepalived")
	if err != nil {
		return Balancer{}, fmt.Errorf("%w (Debian package keepalived)", err)
	}
	return Balancer{
		name: "keepalived",
		command: func(s *Site, n *node) ([]string, []string, error) {
			base := filepath.Join(s.dir, n.name+"-keepalived")
			args := []string{
				path, "--dont-fork", "--log-console", "--vrrp", "--use-file", base + ".conf",
				"--pid", base + ".pid", "--vrrp_pid", base + "-vrrp.pid",
			}
			return args, nil, os.WriteFile(base+".conf", []byte(vrrp(s, n)), 0o600)
		},
		service: func(_ *Site, number int) object { return service(number, nil) },
	}, nil
}

// advertised is how many addresses keepalived's documentation allows in an advertisement. The others come and go with
// them.
const advertised = 20

func vrrp(s *Site, n *node) string {
	addresses := make([]string, 0, len(s.addresses))
	for _, address := range s.addresses {
		addresses = append(addresses, address.String()+"/32")
	}
	some := min(advertised, len(addresses))
	return fmt.Sprintf(`vrrp_instance bench {
  state BACKUP
  nopreempt
  interface %s
  virtual_router_id 51
  priority %d
  virtual_ipaddress {
    %s
  }
  virtual_ipaddress_excluded {
    %s
  }
}
`, link, 100-n.number, strings.Join(addresses[:some], "\n    "), strings.Join(addresses[some:], "\n    "))
}

// service is one of type LoadBalancer. The first is that of the pods, and the others have an address alone.
func service(number int, annotations map[string]string) object {
	name, policy := web, "Local"
	if number > 0 {
		name, policy = fmt.Sprintf("%s-%d", web, number), "Cluster"
	}
	return object{
		"metadata": object{"name": name, "annotations": annotations},
		"spec": object{
			"type": "LoadBalancer", "externalTrafficPolicy": policy,
			"ipFamilyPolicy": "PreferDualStack", "allocateLoadBalancerNodePorts": false,
			"ports": []object{{"name": "p", "port": 80, "protocol": "TCP"}},
		},
	}
}

// publish makes the Services of all addresses.
func (s *Site) publish(ctx context.Context) error {
	for number, address := range s.addresses {
		service := s.balancer.service(s, number)
		if err := s.api.do(ctx, http.MethodPost, servicesPath, service); err != nil {
			return err
		}
		if s.balancer.tells {
			continue
		}
		name := service["metadata"].(object)["name"].(string)
		status := object{"status": object{"loadBalancer": object{"ingress": []object{{"ip": address.String()}}}}}
		if err := s.api.do(ctx, http.MethodPatch, servicesPath+"/"+name+"/status", status); err != nil {
			return err
		}
	}
	return nil
}

// startLB starts the balancer on a node, with variables beyond its own.
func (s *Site) startLB(ctx context.Context, n *node, settings ...string) error {
	return s.startAs(ctx, n, s.balancer, settings...)
}

// startAs starts a balancer in place of the site's.
func (s *Site) startAs(ctx context.Context, n *node, b Balancer, settings ...string) error {
	args, env, err := b.command(s, n)
	if err != nil {
		return err
	}
	n.lb, err = n.start(ctx, s.dir, n.name, nil, append(env, settings...), args...)
	return err
}

// endLB ends the balancer on nodes in order.
func endLB(nodes ...*node) error {
	for _, n := range nodes {
		if err := n.lb.End(leaveTime); err != nil {
			return err
		}
	}
	return nil
}

// leaveTime is how long a balancer may take to end in order.
const leaveTime = 15 * time.Second
