package edge

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/tinkerbell/stack/test/e2e/attack"
	"github.com/tinkerbell/stack/test/e2e/bench/peers"
	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
	"github.com/tinkerbell/stack/test/e2e/process"
)

// Where the candidates listen.
const (
	plainAddr = "127.0.0.1:8080"
	ecdsaAddr = "127.0.0.1:8443"
	rsaAddr   = "127.0.0.1:8444"
)

// ourRoutes with nothing but what is asked for; all else is as it is by default.
const ourRoutes = `routes:
- name: files
  protocol: files
  listen: 127.0.0.1:8080
  files: {directory: %[1]s/files}
- name: files-rated
  protocol: files
  listen: 127.0.0.1:8081
  files: {directory: %[1]s/files}
  limits: {rate: 1G}
- name: files-ecdsa
  protocol: files
  listen: 127.0.0.1:8443
  files: {directory: %[1]s/files}
  tls: {certificates: {certificate: %[1]s/ecdsa.crt, key: %[1]s/ecdsa.key}}
- name: files-rsa
  protocol: files
  listen: 127.0.0.1:8444
  files: {directory: %[1]s/files}
  tls: {certificates: {certificate: %[1]s/rsa.crt, key: %[1]s/rsa.key}}
`

// nginxConf is tuned as its manual offers: sendfile with full packets, open files kept; under TLS large buffers, and
// the cipher and the group that crypto/tls agrees on with the client. There is no resumption, though
// nothing keeps it from making two tickets for every client of TLS 1.3. It has no rate for a server as a whole: what is
// nearest is a hundredth of 1 Gbit/s for each connection.
const nginxConf = `daemon off; user root; pid %[1]s/nginx.pid; error_log %[1]s/nginx.log; worker_processes 2;
worker_rlimit_nofile 8192;
events { worker_connections 4096; }
http {
  access_log off; default_type application/octet-stream; client_body_temp_path %[1]s/nginx-body;
  proxy_temp_path %[1]s/nginx-proxy; fastcgi_temp_path %[1]s/nginx-fastcgi; uwsgi_temp_path %[1]s/nginx-uwsgi;
  scgi_temp_path %[1]s/nginx-scgi;
  root %[1]s/files;
  sendfile on; tcp_nopush on; open_file_cache max=100; keepalive_requests 1000000;
  output_buffers 2 64k; ssl_buffer_size 16k;
  ssl_protocols TLSv1.3; ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256; ssl_ecdh_curve X25519;
  ssl_session_tickets off; ssl_session_cache off;
  server { listen 127.0.0.1:8080 backlog=4096; }
  server { listen 127.0.0.1:8081 backlog=4096; limit_rate 1250000; }
  server { listen 127.0.0.1:8443 ssl backlog=4096;
    ssl_certificate %[1]s/ecdsa.crt; ssl_certificate_key %[1]s/ecdsa.key; }
  server { listen 127.0.0.1:8444 ssl backlog=4096;
    ssl_certificate %[1]s/rsa.crt; ssl_certificate_key %[1]s/rsa.key; }
}
`

// candidate is a proxy that runs.
type candidate struct {
	*process.Process
	container *attack.Container // nil without a limit
}

// stop ends it.
func (c *candidate) stop() {
	if c.Process != nil {
		c.Kill()
	}
	if c.container != nil {
		_ = c.container.Remove()
	}
}

// start runs a candidate, and looks whether it serves what it should.
func (b *bench) start(ctx context.Context, name string) (c *candidate, err error) {
	c = &candidate{}
	defer func() {
		if err != nil {
			c.stop()
		}
	}()
	file, text := b.site.path(name+".conf"), ourRoutes
	path, args := b.Proxy, []string(nil)
	switch name {
	case nginx:
		if path, err = process.Find("nginx"); err != nil {
			return c, fmt.Errorf("failed to find nginx (Debian: nginx-light): %w", rounds.ErrLeftOut)
		}
		text, args = nginxConf, []string{"-c", file, "-p", b.site.dir}
	case nginxNow:
		now, err := peers.Find(ctx, "nginx")
		if err != nil {
			return c, fmt.Errorf("%w: %w", err, rounds.ErrLeftOut)
		}
		command := now.Command("-c", file, "-p", b.site.dir)
		path, args, text = command[0], command[1:], peers.Tuned(nginxConf)
	}
	if err := os.WriteFile(file, fmt.Appendf(nil, text, b.site.dir), 0o600); err != nil {
		return c, err
	}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "STACK_PROXY_ROUTES_FILE="+file, "STACK_PROXY_DRAIN_GRACE=0s",
		"STACK_PROXY_DRAIN_TIMEOUT=0s", "STACK_PROXY_ADMIN_ADDRESS=127.0.0.1:9090")
	if name == oursChart {
		if c.container, err = rounds.Contain(cmd); err != nil {
			return c, err
		}
	}
	// The last to listen.
	c.Process, err = process.Start(ctx, cmd, process.Options{Name: name, Ready: process.Listens(rsaAddr)})
	if err != nil {
		return c, err
	}
	if err := b.site.check(ctx); err != nil {
		return c, fmt.Errorf("failed to get the right answer of %s: %w", name, err)
	}
	return c, nil
}

// serving measures a candidate that is started for it.
func (b *bench) serving(
	measure func(context.Context, *process.Process) (rounds.Sample, error),
) func(context.Context, string) (rounds.Sample, error) {
	return func(ctx context.Context, name string) (rounds.Sample, error) {
		c, err := b.start(ctx, name)
		if err != nil {
			return nil, err
		}
		defer c.stop()
		return measure(ctx, c.Process)
	}
}
