package storm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// The candidates: stack-proxy and dhcp-relay, or nginx and ISC dhcrelay as the former chart, 0.6.3, has them.
const (
	Ours   = "ours"
	Former = "former"
)

// Candidates lists them.
func Candidates() []string { return []string{Ours, Former} }

// candidate is what runs in the pod.
type candidate struct{ proxy, relay *lab.Proc }

// nginxConf is what the former chart has: one worker, 1024 connections, backends by names that are looked up
// again, hence a new connection to a backend for each request. It takes a directory, the modules to load, the name
// server, the domain and the files. Logs of requests are left out: ours writes none either.
const nginxConf = `%[2]s
daemon off; user root; pid %[1]s/pid; error_log %[1]s/error.log; worker_processes 1;
events { worker_connections 1024; }
http {
  access_log off;
  resolver %[3]s;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy;
  server {
    listen 50061;
    location / {
      set $hegel hegel.%[4]s;
      proxy_set_header X-Real-IP $remote_addr;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_pass http://$hegel:50061;
    }
  }
  server {
    listen 7171;
    location / {
      set $smee smee.%[4]s;
      proxy_set_header X-Real-IP $remote_addr;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_pass http://$smee:7171;
    }
  }
  server {
    listen 42113 http2;
    location / {
      set $tink tink-server.%[4]s;
      grpc_pass grpc://$tink:42113;
    }
  }
  server { listen 8080; sendfile on; location / { root %[5]s; } }
}
stream {
  resolver %[3]s;
  server { listen 69 udp; set $smee smee.%[4]s; proxy_pass $smee:69; }
  server { listen 514 udp; set $smee smee.%[4]s; proxy_pass $smee:514; }
}
`

const streamModule = "/usr/lib/nginx/modules/ngx_stream_module.so"

// prepare says what of the pod the lab starts.
func (s *Site) prepare(o *lab.Options) error {
	switch s.opts.Candidate {
	case Ours:
	case Former:
		o.Without = append(o.Without, lab.StackBoots, lab.DHCPRelay, lab.StackProxy)
		return nil
	default:
		return fmt.Errorf("failed to start candidate: there is no %q", s.opts.Candidate)
	}
	o.Env = map[string][]string{}
	if s.opts.Unlimited {
		return nil
	}
	var err error
	s.containers, err = makeContainers(o)
	return err
}

// start starts what the lab did not.
func (s *Site) start(ctx context.Context) (*candidate, error) {
	if s.opts.Candidate == Ours {
		// A storm within the first second is over before Smee's loaders are compared, and says nothing of them.
		if err := lab.Line(ctx, s.Lab.LogPath(lab.StackProxy), func(line string) bool {
			return strings.Contains(line, `"loader kept"`) && strings.Contains(line, `"`+loaderFile+`@`)
		}); err != nil {
			return nil, fmt.Errorf("failed to wait until %s is kept: %w", loaderFile, err)
		}
		return &candidate{proxy: s.Lab.Proc(lab.StackProxy), relay: s.Lab.Proc(lab.DHCPRelay)}, nil
	}
	nginx, err := process.Find("nginx")
	if err != nil {
		return nil, fmt.Errorf("failed to find nginx (package nginx-light): %w", err)
	}
	dhcrelay, err := findRelay(ctx, s.opts.Peers)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.opts.Dir, "nginx")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return nil, err
	}
	load := ""
	if _, err := os.Stat(streamModule); err == nil {
		load = "load_module " + streamModule + ";"
	}
	conf := fmt.Sprintf(nginxConf, dir, load, lab.DNSIP, lab.Domain, filepath.Join(s.opts.Dir, "files"))
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return nil, err
	}
	// As the chart's init container does.
	err = s.Lab.Do(lab.RolePod, func() error {
		link, err := netlink.LinkByName(listener)
		if err != nil {
			return err
		}
		address := netip.MustParsePrefix("127.1.1.1/32")
		addr, err := netlink.ParseAddr(address.String())
		if err != nil {
			return err
		}
		return netlink.AddrReplace(link, addr)
	})
	if err != nil {
		return nil, fmt.Errorf("failed to give %s its address: %w", listener, err)
	}
	c := &candidate{}
	if c.proxy, err = s.Lab.Start(lab.Process{
		Name: "nginx", Role: lab.RolePod, Path: nginx, Args: []string{"-c", file, "-p", dir}, Watch: true,
	}); err != nil {
		return nil, err
	}
	if c.relay, err = s.Lab.Start(lab.Process{
		Name: "dhcrelay", Role: lab.RolePod, Path: dhcrelay, Watch: true,
		Args: []string{
			"-d", "-q", "-4", "-m", "forward", "-c", "10", "-id", listener, "-iu", "eth0", "-U", "eth0",
			"smee." + lab.Domain + ".",
		},
	}); err != nil {
		return nil, err
	}
	return c, s.waitForNginx(ctx, c.proxy)
}

// listener is the pod's interface on the machines' network.
const listener = "macvlan0"

// waitForNginx waits until every port is open.
func (s *Site) waitForNginx(ctx context.Context, nginx *lab.Proc) error {
	err := s.Lab.WaitReady(ctx, nginx, func(ctx context.Context) error {
		for _, port := range []uint16{50061, 7171, 42113, 8080} {
			conn, err := s.Lab.Dial(lab.RolePod)(ctx, "tcp", netip.AddrPortFrom(lab.PodIP, port).String())
			if err != nil {
				return err
			}
			_ = conn.Close()
		}
		return nil
	})
	if err != nil {
		return err
	}
	time.Sleep(500 * time.Millisecond) // dhcrelay looks its server up, and says nothing
	return nil
}

// findRelay finds ISC dhcrelay, or fetches its package and unpacks it: installed, its service would start.
func findRelay(ctx context.Context, dir string) (string, error) {
	if path, err := process.Find("dhcrelay"); err == nil {
		return path, nil
	}
	path, err := filepath.Abs(filepath.Join(dir, "usr/sbin/dhcrelay"))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	const script = "apt-get download -q isc-dhcp-relay && dpkg-deb -x isc-dhcp-relay_*.deb ."
	fetch := exec.CommandContext(ctx, "sh", "-c", script)
	fetch.Dir = dir
	if said, err := fetch.CombinedOutput(); err != nil {
		return "", fmt.Errorf("failed to fetch Debian package isc-dhcp-relay: %w\n%s", err, said)
	}
	return path, nil
}

// pids are those of a program and its workers.
func pids(p *lab.Proc) []int {
	if p == nil {
		return nil
	}
	return process.Family(p.Pid())
}
