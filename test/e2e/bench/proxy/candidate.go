package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The candidates.
const (
	ours       = "ours"
	nginxChart = "nginx-chart"
	nginxTuned = "nginx-tuned"
	haproxy    = "haproxy"
	direct     = "direct"
)

// Where the candidates listen, and the backends behind them. Without a proxy the client asks the backend.
const (
	httpAddr    = "127.0.0.1:7171"
	tcpAddr     = "127.0.0.1:42113"
	httpBackend = "127.0.0.2:7171"
	tcpBackend  = "127.0.0.2:42113"
)

var errLeftOut = errors.New("not installed")

const ourRoutes = `routes:
  - {name: smee-http, protocol: http, listen: "127.0.0.1:7171", backends: "127.0.0.2:7171"}
  - {name: tink, protocol: tcp, listen: "127.0.0.1:42113", backends: "127.0.0.2:42113"}
`

// nginxChartConf does what the chart's nginx.conf does for HTTP: one worker, 1024 connections, names looked up at
// run time, hence a new connection to the backend for each request. It has no TCP stream.
const nginxChartConf = `daemon off; user root; pid %[1]s/pid; error_log %[1]s/log; worker_processes 1;
events { worker_connections 1024; }
http {
  access_log off;
  server {
    listen 127.0.0.1:7171;
    location / {
      set $backend 127.0.0.2:7171;
      proxy_set_header X-Real-IP $remote_addr;
      proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
      proxy_pass http://$backend;
    }
  }
}
`

// nginxTunedConf is what its manual offers: kept connections to the backend, a stream for TCP, room for connections.
const nginxTunedConf = `%[2]s daemon off; user root; pid %[1]s/pid; error_log %[1]s/log; worker_processes 2;
worker_rlimit_nofile %[3]d;
events { worker_connections %[3]d; multi_accept on; }
http {
  access_log off; keepalive_requests 1000000;
  upstream backend { server 127.0.0.2:7171; keepalive 128; keepalive_requests 1000000; }
  server {
    listen 127.0.0.1:7171 backlog=16384;
    location / {
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_set_header X-Real-IP $remote_addr;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_pass http://backend;
    }
  }
}
stream {
  server { listen 127.0.0.1:42113 backlog=16384; proxy_pass 127.0.0.2:42113; proxy_timeout 1h; }
}
`

const haproxyConf = `global
  maxconn %d
  maxpipes 100
  nbthread 2
defaults
  timeout connect 2s
  timeout client 1h
  timeout server 1h
  backlog 16384
listen http
  mode http
  bind 127.0.0.1:7171
  http-request set-header X-Real-IP %%[src]
  http-request set-header X-Forwarded-For %%[src]
  http-reuse always
  server b 127.0.0.2:7171
listen tcp
  mode tcp
  option splice-auto
  bind 127.0.0.1:42113
  server b 127.0.0.2:42113
`

// candidate is a proxy that runs, or none.
type candidate struct {
	name      string
	http, tcp string // where to ask
	cmd       *exec.Cmd
	dir       string
	log       *bytes.Buffer
}

func startCandidate(ctx context.Context, stackProxy, name string) (*candidate, error) {
	if name == direct {
		return &candidate{name: name, http: httpBackend, tcp: tcpBackend}, nil
	}
	dir, err := os.MkdirTemp("", "bench-proxy-")
	if err != nil {
		return nil, err
	}
	c := &candidate{name: name, http: httpAddr, tcp: tcpAddr, dir: dir, log: new(bytes.Buffer)}
	file := filepath.Join(dir, "conf")
	text := ""
	switch name {
	case ours:
		text = ourRoutes
		c.cmd = exec.CommandContext(ctx, stackProxy)
		c.cmd.Env = append(os.Environ(), "STACK_PROXY_ROUTES_FILE="+file, "STACK_PROXY_DRAIN_GRACE=0s",
			"STACK_PROXY_DRAIN_TIMEOUT=0s", "STACK_PROXY_ADMIN_ADDRESS=127.0.0.1:9090")
	case nginxChart:
		text = fmt.Sprintf(nginxChartConf, dir)
		c.cmd = exec.CommandContext(ctx, find("nginx"), "-c", file, "-p", dir)
	case nginxTuned:
		load := ""
		if module := "/usr/lib/nginx/modules/ngx_stream_module.so"; exists(module) {
			load = "load_module " + module + ";"
		}
		text = fmt.Sprintf(nginxTunedConf, dir, load, descriptors())
		c.cmd = exec.CommandContext(ctx, find("nginx"), "-c", file, "-p", dir)
	case haproxy:
		text = fmt.Sprintf(haproxyConf, descriptors()/2-300)
		c.cmd = exec.CommandContext(ctx, find("haproxy"), "-f", file, "-db")
	}
	if c.cmd.Path == "" || !exists(c.cmd.Path) {
		return nil, fmt.Errorf("%s: %w", name, errLeftOut)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("failed to start %s: %w", name, err)
	}
	if err := waitFor(c.http); err != nil {
		c.stop()
		return nil, fmt.Errorf("failed to start %s: %w\n%s", name, err, c.log)
	}
	return c, nil
}

func waitFor(addr string) error {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return conn.Close()
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// stop ends the candidate's process group.
func (c *candidate) stop() {
	if c.cmd == nil {
		return
	}
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	_ = c.cmd.Wait()
	_ = os.RemoveAll(c.dir)
}

// pids are the candidate's processes: nginx has workers.
func (c *candidate) pids() []int {
	if c.cmd == nil {
		return nil
	}
	return family(c.cmd.Process.Pid)
}

// family is a process and its children.
func family(parent int) []int {
	pids := []int{parent}
	entries, _ := os.ReadDir("/proc")
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if fields := stat(pid); len(fields) > 2 && fields[1] == strconv.Itoa(pids[0]) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// cpu is the processor time used so far, in seconds.
func (c *candidate) cpu() float64 {
	ticks := 0
	for _, pid := range c.pids() {
		if fields := stat(pid); len(fields) > 13 {
			user, _ := strconv.Atoi(fields[11])
			system, _ := strconv.Atoi(fields[12])
			ticks += user + system
		}
	}
	return float64(ticks) / 100
}

// rss is the resident memory in KiB, without what processes share.
func (c *candidate) rss() float64 {
	total := 0.0
	for _, pid := range c.pids() {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		for line := range strings.Lines(string(text)) {
			if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Pss:" {
				kib, _ := strconv.ParseFloat(fields[1], 64)
				total += kib
			}
		}
	}
	return total
}

// stat is /proc/pid/stat from the state on.
func stat(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	_, after, _ := strings.Cut(string(text), ") ")
	return strings.Fields(after)
}

func find(name string) string {
	for _, dir := range []string{"/usr/sbin/", "/usr/bin/", "/usr/local/bin/"} {
		if exists(dir + name) {
			return dir + name
		}
	}
	return name
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
