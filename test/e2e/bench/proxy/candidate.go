package proxy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/attack"
	"github.com/tinkerbell/stack/test/e2e/bench/peers"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// The candidates.
const (
	ours       = "ours"
	oursBoots  = "ours-boots" // that tells of boots
	oursChart  = "ours-chart" // with the chart's limit of memory, in a cgroup
	nginxChart = "nginx-chart"
	nginxTuned = "nginx-tuned"
	nginxNow   = "nginx-1.26"
	haproxy    = "haproxy"
	haproxyNow = "haproxy-3.0"
	direct     = "direct"
)

// Where the candidates listen, and the backends behind them. Without a proxy the client asks the backend.
const (
	httpAddr    = "127.0.0.1:7171"
	tcpAddr     = "127.0.0.1:42113"
	filesAddr   = "127.0.0.1:8080"
	httpBackend = "127.0.0.2:7171"
	tcpBackend  = "127.0.0.2:42113"
)

// ourRoutes takes the files' directory.
const ourRoutes = `routes:
  - {name: smee-http, protocol: http, listen: "127.0.0.1:7171", backends: "127.0.0.2:7171"}
  - {name: tink, protocol: tcp, listen: "127.0.0.1:42113", backends: "127.0.0.2:42113"}
  - {name: files, protocol: files, listen: "127.0.0.1:8080", files: {directory: "%[1]s"}}
`

// nginxChartConf does what the chart's nginx.conf does for HTTP: one worker, 1024 connections, names looked up at
// run time, hence a new connection to the backend for each request; and for files. It has no TCP stream.
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
  server { listen 127.0.0.1:8080; sendfile on; location / { root %[2]s; } }
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
  sendfile on; tcp_nopush on; open_file_cache max=1000;
  server { listen 127.0.0.1:8080 backlog=16384; location / { root %[4]s; } }
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
	*process.Process        // nil without a proxy
	http, tcp        string // where to ask
	dir              string
	container        *attack.Container // nil without a limit
}

// startCandidate starts a candidate before an HTTP backend, which is b.http or another.
func startCandidate(ctx context.Context, b *bench, name, backend string) (*candidate, error) {
	if name == direct {
		return &candidate{http: httpBackend, tcp: tcpBackend}, nil
	}
	dir, err := os.MkdirTemp("", "bench-proxy-")
	if err != nil {
		return nil, err
	}
	c := &candidate{http: httpAddr, tcp: tcpAddr, dir: dir}
	if c.Process, err = c.start(ctx, b, name, backend); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

func (c *candidate) start(ctx context.Context, b *bench, name, backend string) (*process.Process, error) {
	file := filepath.Join(c.dir, "conf")
	var path, text string
	var args []string
	switch name {
	case ours, oursBoots, oursChart:
		path = b.Proxy
		text = fmt.Sprintf(ourRoutes, b.backends.files)
	default:
		var err error
		if path, args, text, err = c.peer(ctx, b, name, file); err != nil {
			return nil, fmt.Errorf("%s: %w: %w", name, err, rounds.ErrLeftOut)
		}
	}
	text = strings.ReplaceAll(text, httpBackend, backend)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "STACK_PROXY_ROUTES_FILE="+file, "STACK_PROXY_DRAIN_GRACE=0s",
		"STACK_PROXY_DRAIN_TIMEOUT=0s", "STACK_PROXY_ADMIN_ADDRESS=127.0.0.1:9090",
		"STACK_PROXY_BOOTS_ADDRESS="+map[bool]string{true: b.socket}[name == oursBoots])
	if name == oursChart {
		var err error
		if c.container, err = rounds.Contain(cmd); err != nil {
			return nil, err
		}
	}
	return process.Start(ctx, cmd, process.Options{Name: name, Ready: func(ctx context.Context) error {
		if name != nginxChart { // which has no TCP
			if err := process.Listens(c.tcp)(ctx); err != nil {
				return err
			}
		}
		return process.Listens(c.http)(ctx)
	}})
}

// peer is the command line of another program, and its configuration.
func (c *candidate) peer(ctx context.Context, b *bench, name, file string) (
	path string, args []string, text string, err error,
) {
	program, conf := "nginx", []string{"-c", file, "-p", c.dir}
	module := "/usr/lib/nginx/modules/ngx_stream_module.so"
	tuned := func() string {
		load := ""
		if _, err := os.Stat(module); err == nil { // which Debian has apart
			load = "load_module " + module + ";"
		}
		return fmt.Sprintf(nginxTunedConf, c.dir, load, descriptors(), b.backends.files)
	}
	switch name {
	case nginxChart:
		text = fmt.Sprintf(nginxChartConf, c.dir, b.backends.files)
	case nginxTuned:
		text = tuned()
	case nginxNow:
		now, err := peers.Find(ctx, "nginx")
		if err == nil {
			module, err = now.File("usr/lib/nginx/modules/ngx_stream_module.so")
		}
		if err != nil {
			return "", nil, "", err
		}
		command := now.Command(conf...)
		return command[0], command[1:], peers.Tuned(tuned()), nil
	case haproxy, haproxyNow:
		program, conf = "haproxy", []string{"-f", file, "-db"}
		text = fmt.Sprintf(haproxyConf, descriptors()/2-300)
		if name == haproxyNow {
			now, err := peers.Find(ctx, "haproxy")
			if err != nil {
				return "", nil, "", err
			}
			command := now.Command(conf...)
			return command[0], command[1:], text, nil
		}
	}
	path, err = process.Find(program)
	return path, conf, text, err
}

func (c *candidate) stop() {
	c.Kill()
	if c.container != nil {
		_ = c.container.Remove()
	}
	_ = os.RemoveAll(c.dir)
}
