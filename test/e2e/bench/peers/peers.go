// Package peers has programs of a newer Debian than this machine's, unpacked and not installed: the peers of today
// beside those of this machine.
package peers

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/kernel"
)

// release is Debian 13, with nginx 1.26, HAProxy 3.0 and dnsmasq 2.91.
const release = "trixie"

// packages have the programs, or need the package that has them.
var packages = map[string]string{"nginx": "libnginx-mod-stream", "haproxy": "haproxy", "dnsmasq": "dnsmasq-base"}

// Program is one that runs with the libraries of its release.
type Program struct {
	dir  string
	path string
}

// Find unpacks a program with what it needs, where that is not in the user's cache yet. In a network namespace of its
// own a bench finds only what it has unpacked before.
func Find(ctx context.Context, program string) (Program, error) {
	pkg := kernel.Package{Name: packages[program], Release: release, Whole: true}
	dir, err := kernel.Unpack(ctx, pkg, func(string, ...any) {})
	p := Program{dir: dir}
	if err == nil {
		p.path, err = p.File("usr/sbin/" + program)
	}
	if err != nil {
		return Program{}, fmt.Errorf("failed to find %s of %s: %w", program, release, err)
	}
	return p, nil
}

// Command is the program's command line.
func (p Program) Command(args ...string) []string {
	at := func(name string) string { return filepath.Join(p.dir, name) }
	own := []string{at("usr/lib64/ld-linux-x86-64.so.2"), "--library-path", strings.Join([]string{
		at("usr/lib/x86_64-linux-gnu"), at("usr/lib/x86_64-linux-gnu/systemd"), at("lib/x86_64-linux-gnu"),
	}, ":"), p.path}
	return append(own, args...)
}

// Tuned is a tuned configuration of nginx with what takes files and connections best: a listener for each worker, files
// read by threads where sendfile does not, and the kernel's TLS where it has that.
func Tuned(conf string) string {
	const tickets = "ssl_session_tickets off;"
	best := strings.NewReplacer("backlog=", "reuseport backlog=", "sendfile on;", "sendfile on; aio threads;")
	conf = best.Replace(conf)
	if KernelTLS() {
		conf = strings.Replace(conf, tickets, tickets+" ssl_conf_command Options KTLS;", 1)
	}
	return conf
}

// KernelTLS tells whether this kernel encrypts what sendfile sends (CONFIG_TLS, its module loaded).
func KernelTLS() bool {
	_, err := os.Stat("/proc/net/tls_stat")
	return err == nil
}

// File is a file of its packages.
func (p Program) File(name string) (string, error) {
	file := filepath.Join(p.dir, name)
	_, err := os.Stat(file)
	return file, err
}
