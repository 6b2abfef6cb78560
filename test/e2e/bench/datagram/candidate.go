package datagram

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/tinkerbell/stack/test/e2e/attack"
	"github.com/tinkerbell/stack/test/e2e/bench/peers"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/network"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// routes is what stack-proxy is given; its other settings are the defaults.
const routes = `routes:
  - {name: tftp, protocol: tftp, listen: [69], backends: ["%[1]s:69"], tftp: {files: %[2]s}}
  - {name: syslog, protocol: syslog, listen: [514], backends: ["%[1]s:514"]}
`

// nginxChart has what the chart's nginx.conf has for UDP: one worker, 1024 connections, the default timeout of
// ten minutes, no bound on answers.
const nginxChart = `daemon off; pid %[2]s/pid; error_log %[2]s/log; worker_processes 1; %[3]s
events { worker_connections 1024; }
stream {
  server { listen 69 udp; proxy_pass %[1]s:69; }
  server { listen 514 udp; proxy_pass %[1]s:514; }
}
`

// nginxTuned is what its manual offers for many one-way and short flows.
const nginxTuned = `daemon off; pid %[2]s/pid; error_log %[2]s/log; worker_processes 1; %[3]s
worker_rlimit_nofile 65536;
events { worker_connections 16384; multi_accept on; }
stream {
  server { listen 69 udp rcvbuf=4m; proxy_pass %[1]s:69; proxy_timeout 60s; }
  server { listen 514 udp rcvbuf=4m; proxy_pass %[1]s:514; proxy_timeout 10s; }
}
`

// candidate is a proxy that runs; ours-chart has the chart's limit of memory, in a cgroup.
type candidate struct {
	*process.Process // nil until it runs
	dir              string
	container        *attack.Container // nil without a limit
}

func (c *candidate) stop() {
	if c.Process != nil {
		c.Kill()
	}
	if c.container != nil {
		_ = c.container.Remove()
	}
}

func (c *candidate) start(ctx context.Context, n *site, o Options, name string) (err error) {
	var cmd *exec.Cmd
	ports := 2 // 69 and 514
	switch name {
	case "ours", "ours-chart", oursFile:
		files := `""`
		if name == oursFile {
			if files, err = c.boot(); err != nil {
				return err
			}
		}
		file := filepath.Join(c.dir, "routes.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, routes, serverIP, files), 0o600); err != nil {
			return err
		}
		cmd = exec.Command(o.Proxy)
		cmd.Env = append(os.Environ(), "STACK_PROXY_ROUTES_FILE="+file, "STACK_PROXY_DRAIN_GRACE=0s",
			"STACK_PROXY_DRAIN_TIMEOUT=0s")
		if name == "ours-chart" {
			if c.container, err = rounds.Contain(cmd); err != nil {
				return err
			}
		}
	case "nginx-chart", "nginx-tuned":
		if o.Nginx == "" {
			return fmt.Errorf("no nginx is given for %s: %w", name, rounds.ErrLeftOut)
		}
		conf := nginxChart
		if name == "nginx-tuned" {
			conf = nginxTuned
		}
		file := filepath.Join(c.dir, "nginx.conf")
		load := ""
		if module := "/usr/lib/nginx/modules/ngx_stream_module.so"; exists(module) {
			load = "load_module " + module + ";"
		}
		text := load + "\n" + fmt.Sprintf(conf, serverIP, c.dir, "user root;")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		cmd = exec.Command(o.Nginx, "-c", file, "-p", c.dir)
	default:
		ports = 1
		if cmd, err = c.server(ctx, name); err != nil {
			return fmt.Errorf("%w: %w", err, rounds.ErrLeftOut)
		}
	}
	ready := func(context.Context) error { return n.bound(ports) }
	c.Process, err = process.Start(ctx, cmd, process.Options{Name: name, Enter: network.Into(n.proxy), Ready: ready})
	if err == nil && name == tftpd { // a process for each transfer
		err = c.Account()
	}
	if err == nil {
		time.Sleep(100 * time.Millisecond) // endpoints, workers
	}
	return err
}

// boot is a directory with the loader.
func (c *candidate) boot() (string, error) {
	dir := filepath.Join(c.dir, "boot")
	return dir, errors.Join(os.Chmod(c.dir, 0o755), os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "file"), bootFile(), 0o644))
}

// server is a TFTP server of Debian's.
func (c *candidate) server(ctx context.Context, name string) (*exec.Cmd, error) {
	dir, err := c.boot()
	if err != nil {
		return nil, err
	}
	if name == tftpd {
		path, err := process.Find("in.tftpd")
		return exec.Command(path, "--foreground", "--user", "root", "--address", "0.0.0.0:69", "--secure", dir), err
	}
	args := []string{
		"--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file=", "--log-facility=-",
		"--enable-tftp", "--tftp-root=" + dir, "--tftp-max=1000", "--quiet-tftp",
	}
	if name == dnsmasqNow {
		now, err := peers.Find(ctx, "dnsmasq")
		if err != nil {
			return nil, err
		}
		args = now.Command(args...)
		return exec.Command(args[0], args[1:]...), nil
	}
	path, err := process.Find("dnsmasq")
	return exec.Command(path, args...), err
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// bound is ready when so many of the ports are open in the proxy's namespace.
func (n *site) bound(want int) error {
	return network.Do(n.proxy, func() error {
		bound := 0
		for _, table := range []string{"/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"} {
			b, err := os.ReadFile(table)
			if err != nil {
				return err
			}
			for _, port := range []string{":0045 ", ":0202 "} {
				if bytes.Contains(b, []byte(port)) {
					bound++
				}
			}
		}
		if bound < want {
			return fmt.Errorf("%d of %d ports are open", bound, want)
		}
		return nil
	})
}
