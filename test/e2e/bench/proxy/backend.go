package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/tinkerbell/stack/test/e2e/process"
)

// backends are what the candidates pass to: nginx for HTTP, since it costs the least, and sockets of ours for TCP.
type backends struct {
	nginx    *process.Process
	dir      string
	files    string // the directory that candidates serve
	listener net.Listener
}

// fileName and fileSize are of the file that candidates serve: about an iPXE binary.
const (
	fileName = "boot.efi"
	fileSize = 64 << 10
)

const backendConf = `daemon off; user root; pid %[1]s/pid; error_log %[1]s/log; worker_processes 1;
worker_rlimit_nofile %[2]d;
events { worker_connections %[2]d; }
http {
  access_log off; keepalive_requests 100000000;
  server {
    listen 127.0.0.2:7171 backlog=16384;
    location / { return 200 "#!ipxe\nchain http://192.0.2.2/auto.ipxe\n"; }
  }
}
`

func startBackends(ctx context.Context) (*backends, error) {
	dir, err := os.MkdirTemp("", "bench-backend-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, backendConf, dir, descriptors()), 0o600); err != nil {
		return nil, err
	}
	b := &backends{dir: dir, files: filepath.Join(dir, "files")}
	if err := b.fill(); err != nil {
		b.stop()
		return nil, fmt.Errorf("failed to make a file to serve: %w", err)
	}
	path, err := process.Find("nginx")
	if err == nil {
		b.nginx, err = process.Start(ctx, exec.Command(path, "-c", file, "-p", dir),
			process.Options{Ready: process.Listens(httpBackend)})
	}
	if err != nil {
		b.stop()
		return nil, fmt.Errorf("failed to start the HTTP backend, nginx (Debian: nginx-light libnginx-mod-stream): %w", err)
	}
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	if b.listener, err = config.Listen(ctx, "tcp", tcpBackend); err != nil {
		b.stop()
		return nil, err
	}
	go serve(b.listener)
	return b, nil
}

// fill makes the file to serve. nginx's workers may be another user.
func (b *backends) fill() error {
	if err := errors.Join(os.Chmod(b.dir, 0o755), os.Mkdir(b.files, 0o755)); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.files, fileName), make([]byte, fileSize), 0o644)
}

// serve does what the first byte of a connection asks for: 'g' gives bytes until the client has gone, 's' says one
// byte and ends, 'i' is idle.
func serve(listener net.Listener) {
	zeros := make([]byte, 256<<10)
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		go func() {
			defer conn.Close()
			ask := make([]byte, 1)
			if _, err := conn.Read(ask); err != nil {
				return
			}
			switch ask[0] {
			case 'g':
				for {
					if _, err := conn.Write(zeros); err != nil {
						return
					}
				}
			case 's':
				_, _ = conn.Write(ask)
			case 'i':
				_, _ = conn.Write(ask)
				_, _ = conn.Read(ask)
			}
		}()
	}
}

func (b *backends) stop() {
	b.nginx.Kill()
	if b.listener != nil {
		_ = b.listener.Close()
	}
	_ = os.RemoveAll(b.dir)
}
