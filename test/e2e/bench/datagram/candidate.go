package datagram

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/network"
)

// process is a candidate that runs.
type process struct {
	cmd *exec.Cmd
	dir string
	log *bytes.Buffer
}

// routes is what stack-proxy is given; its other settings are the defaults.
const routes = `routes:
  - {name: tftp, protocol: tftp, listen: [69], backends: ["%[1]s:69"]}
  - {name: syslog, protocol: syslog, listen: [514], backends: ["%[1]s:514"], syslog: {source: %[2]s}}
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

func startCandidate(ctx context.Context, n *site, o Options, name string) (*process, error) {
	dir, err := os.MkdirTemp("", "bench-datagram-")
	if err != nil {
		return nil, err
	}
	p := &process{dir: dir, log: new(bytes.Buffer)}
	switch name {
	case "ours", "ours-rewrite":
		source := "none"
		if name == "ours-rewrite" {
			source = "rewrite"
		}
		file := filepath.Join(dir, "routes.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, routes, serverIP, source), 0o600); err != nil {
			return nil, err
		}
		p.cmd = exec.CommandContext(ctx, o.Proxy)
		p.cmd.Env = append(os.Environ(), "STACK_PROXY_ROUTES_FILE="+file, "STACK_PROXY_DRAIN_GRACE=0s",
			"STACK_PROXY_DRAIN_TIMEOUT=0s")
	case "nginx-chart", "nginx-tuned":
		if o.Nginx == "" {
			return nil, fmt.Errorf("no nginx is given for %s: %w", name, rounds.ErrLeftOut)
		}
		conf := nginxChart
		if name == "nginx-tuned" {
			conf = nginxTuned
		}
		file := filepath.Join(dir, "nginx.conf")
		load := ""
		if module := "/usr/lib/nginx/modules/ngx_stream_module.so"; exists(module) {
			load = "load_module " + module + ";"
		}
		text := load + "\n" + fmt.Sprintf(conf, serverIP, dir, "user root;")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		p.cmd = exec.CommandContext(ctx, o.Nginx, "-c", file, "-p", dir)
	default:
		return nil, fmt.Errorf("no such candidate as %s", name)
	}
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	// Killed outright, nginx's master would leave a worker that holds the pipes.
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 5 * time.Second
	if err := network.Do(n.proxy, p.cmd.Start); err != nil {
		return nil, fmt.Errorf("failed to start %s: %w", name, err)
	}
	if err := n.waitBound(p); err != nil {
		p.stop()
		return nil, fmt.Errorf("%w; it said:\n%s", err, p.log)
	}
	return p, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// waitBound waits until both ports are open in the proxy's namespace.
func (n *site) waitBound(p *process) error {
	for range 500 {
		bound := 0
		if err := network.Do(n.proxy, func() error {
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
			return nil
		}); err != nil {
			return err
		}
		if bound >= 2 {
			time.Sleep(100 * time.Millisecond) // endpoints, workers
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("%s has not opened its ports", p.cmd.Path)
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	_ = p.cmd.Wait() // how it exits is not what is measured
	timer.Stop()
	_ = os.RemoveAll(p.dir)
}

// cpu is the processor time of the process and its children so far.
func (p *process) cpu() (time.Duration, error) {
	if p == nil {
		return 0, nil
	}
	pids := []string{strconv.Itoa(p.cmd.Process.Pid)}
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", p.cmd.Process.Pid)); err == nil {
		pids = append(pids, strings.Fields(string(b))...)
	}
	var sum time.Duration
	for _, pid := range pids {
		threads, err := filepath.Glob("/proc/" + pid + "/task/*/schedstat")
		if err != nil {
			return 0, err
		}
		for _, thread := range threads {
			b, err := os.ReadFile(thread)
			if err != nil {
				continue // it has just ended
			}
			ns, err := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("failed to read %s: %w", thread, err)
			}
			sum += time.Duration(ns)
		}
	}
	return sum, nil
}
