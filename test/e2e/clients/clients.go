// Package clients runs the DHCP clients that people use on machines of the lab, and watches their messages and the
// answers. The clients run in network and mount namespaces of their own and call no script: nothing of the host is
// read or changed. The caller gives the machine the address that the client was granted, unless the client does.
package clients

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// Client is a DHCP client from Debian.
type Client struct {
	Name    string
	Program string
	Package string // of Debian
	// Configures tells that it gives the machine the address itself, without a script.
	Configures bool
	// process says how to run it in a directory of its own.
	process func(dir string) (lab.Process, error)
	// renew is the signal that makes it renew at once; 0: it waits for its timer.
	renew syscall.Signal
	// release is the signal that makes it release its lease; 0: releaseArgs start it once more.
	release     syscall.Signal
	releaseArgs func(dir string) []string
	// remember has it find a lease of an earlier life. Nil: it keeps none.
	remember func(dir string, process *lab.Process, ack *dhcpv4.DHCPv4) error
}

// All are the clients that the relay is tested with.
var All = []Client{Udhcpc, Dhclient, Dhcpcd}

// Udhcpc is busybox's, in many initramfs images.
var Udhcpc = Client{
	Name: "udhcpc", Program: "busybox", Package: "busybox",
	renew: syscall.SIGUSR1, release: syscall.SIGUSR2,
	process: func(string) (lab.Process, error) {
		return lab.Process{Args: []string{
			"udhcpc", "-i", "eth0", "-f", "-t", "5", "-T", "1", "-A", "1", "-s", "/bin/true",
		}}, nil
	},
}

// Dhclient is ISC's.
var Dhclient = Client{
	Name: "dhclient", Program: "dhclient", Package: "isc-dhcp-client",
	process: func(dir string) (lab.Process, error) {
		// Its timers have whole minutes of patience by default.
		conf := "timeout 20; retry 1; backoff-cutoff 2; initial-interval 1; initial-delay 0;\n" +
			"request subnet-mask, broadcast-address, routers, host-name;\n"
		if err := os.WriteFile(filepath.Join(dir, "dhclient.conf"), []byte(conf), 0o644); err != nil {
			return lab.Process{}, err
		}
		return lab.Process{Args: append([]string{"-4", "-d", "-v"}, dhclientFiles(dir)...)}, nil
	},
	releaseArgs: func(dir string) []string { return append([]string{"-4", "-d", "-v", "-r"}, dhclientFiles(dir)...) },
	remember: func(dir string, _ *lab.Process, ack *dhcpv4.DHCPv4) error {
		const layout = "1 2006/01/02 15:04:05" // the first number is a day of the week, and not read
		ends := time.Now().Add(ack.IPAddressLeaseTime(0)).UTC().Format(layout)
		text := fmt.Sprintf("lease {\n  interface \"eth0\";\n  fixed-address %s;\n  option subnet-mask %s;\n"+
			"  option dhcp-server-identifier %s;\n  renew %[4]s;\n  rebind %[4]s;\n  expire %[4]s;\n}\n",
			ack.YourIPAddr, net.IP(ack.SubnetMask()), ack.ServerIdentifier(), ends)
		return os.WriteFile(filepath.Join(dir, "leases"), []byte(text), 0o644)
	},
}

func dhclientFiles(dir string) []string {
	return []string{
		"-cf", filepath.Join(dir, "dhclient.conf"),
		"-lf", filepath.Join(dir, "leases"),
		"-pf", filepath.Join(dir, "pid"),
		"-sf", "/bin/true", "eth0",
	}
}

// Dhcpcd is Roy Marples's.
var Dhcpcd = Client{
	Name: "dhcpcd", Program: "dhcpcd", Package: "dhcpcd-base", Configures: true,
	renew: syscall.SIGUSR1, release: syscall.SIGALRM,
	process: func(dir string) (lab.Process, error) {
		conf := filepath.Join(dir, "dhcpcd.conf")
		text := "ipv4only\nnoipv4ll\nnoarp\nnodelay\nscript /bin/true\ntimeout 20\n"
		if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
			return lab.Process{}, err
		}
		return lab.Process{
			Args:  []string{"-B", "-d", "-f", conf, "eth0"},
			Tmpfs: []string{"/run", "/var/lib"}, // its socket, pid file and leases
		}, nil
	},
	// A lease is the server's last message. The directory for it is there in the client's mount namespace only.
	remember: func(dir string, process *lab.Process, ack *dhcpv4.DHCPv4) error {
		file := filepath.Join(dir, "eth0.lease")
		if err := os.WriteFile(file, ack.ToBytes(), 0o644); err != nil {
			return err
		}
		const prepare = `mkdir -p /var/lib/dhcpcd && cp "$0" /var/lib/dhcpcd/ && exec "$@"`
		process.Args = append([]string{"-c", prepare, file, process.Path}, process.Args...)
		process.Path = "/bin/sh"
		return nil
	},
}

// Obtain runs udhcpc once: it asks for a lease three times, a second apart, and ends. The error is that of the
// client, nil when it was granted one.
func Obtain(ctx context.Context, l *lab.Lab, role string) error {
	return l.Run(ctx, lab.Process{
		Name: role + "-obtain", Role: role, Path: Udhcpc.Program,
		Args: []string{"udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "3", "-T", "1", "-s", "/bin/true"},
	})
}

// Missing tells what to install where the client is not there.
func (c Client) Missing() error {
	if _, err := exec.LookPath(c.Program); err != nil {
		return fmt.Errorf("needs Debian's package %s: %w", c.Package, err)
	}
	return nil
}

// Running is a client at work.
type Running struct {
	*lab.Proc
	client Client
	l      *lab.Lab
	role   string
	dir    string
}

// Remembers tells whether the client keeps its lease for the next time that it is started.
func (c Client) Remembers() bool { return c.remember != nil }

// Restart starts the client in a host of [lab.Lab.AddHost] as one that was granted a lease before, by the ACK.
func (c Client) Restart(l *lab.Lab, role string, ack *dhcpv4.DHCPv4) (*Running, error) {
	if !c.Remembers() {
		return nil, fmt.Errorf("failed to restart: %s keeps no lease", c.Name)
	}
	return c.start(l, role, ack)
}

// Start starts the client in a host of [lab.Lab.AddHost], with extra arguments.
func (c Client) Start(l *lab.Lab, role string, extra ...string) (*Running, error) {
	return c.start(l, role, nil, extra...)
}

func (c Client) start(l *lab.Lab, role string, ack *dhcpv4.DHCPv4, extra ...string) (*Running, error) {
	r := &Running{client: c, l: l, role: role, dir: filepath.Join(l.RunDir(), role)}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return nil, err
	}
	process, err := c.process(r.dir)
	if err != nil {
		return nil, fmt.Errorf("failed to configure %s: %w", c.Name, err)
	}
	process.Name, process.Role = role+"-"+c.Name, role
	if process.Path == "" {
		process.Path = c.Program
	}
	process.Args = append(process.Args, extra...)
	if ack != nil {
		if err := c.remember(r.dir, &process, ack); err != nil {
			return nil, fmt.Errorf("failed to write lease of %s: %w", c.Name, err)
		}
	}
	r.Proc, err = l.Start(process)
	return r, err
}

// RenewsOnDemand tells whether Renew works; other clients renew after half of their lease.
func (r *Running) RenewsOnDemand() bool { return r.client.renew != 0 }

// Renew has the client renew its lease now.
func (r *Running) Renew() error {
	if !r.RenewsOnDemand() {
		return fmt.Errorf("failed to renew: %s has no signal for it", r.client.Name)
	}
	return r.Signal(r.client.renew)
}

// Release has the client give its address back.
func (r *Running) Release() error {
	if r.client.release != 0 {
		return r.Signal(r.client.release)
	}
	_, err := r.l.Start(lab.Process{
		Name: r.Name() + "-release", Role: r.role, Path: r.client.Program, Args: r.client.releaseArgs(r.dir),
	})
	return err
}
