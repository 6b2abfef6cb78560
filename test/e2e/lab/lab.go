// Package lab is a provisioning site in network namespaces: a LAN, a node with a pod on it, real Tinkerbell
// services behind the node, and the programs of this project in the pod, with the capabilities that the
// chart gives them and nothing more.
//
//	           LAN 192.0.2.0/24                    pods 10.244.0.0/24
//	machines ── br0 ──────────── prov0 [ node ] cni0 ──┬── pod    .10  stack-proxy, dhcp-relay, stack-boots
//	(tap, veth)  .1 router       .10, .2 service IP    ├── smee   .11
//	                             DNAT to the pod       ├── hegel  .12
//	                             10.96.0.10 DNS        └── tink   .13
//
// A program that uses the package calls [Init] first thing in main (or TestMain): the lab's helper processes are
// the same binary started again. Tests call [ForTest]; others [Up] and [Lab.Down].
//
// Everything in the lab dies with the process that made it, whatever ends that process; see docs/design/decisions.md.
package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// Network namespaces of every lab. [Lab.AddHost] adds more. They appear as /run/netns/stack-<lab's id>-<role>.
const (
	RoleLAN   = "lan"   // the switch: br0 with the machines' ports, and a router
	RoleNode  = "node"  // prov0 on the LAN (default route), cni0 to the pods, DNAT, DNS
	RolePod   = "pod"   // eth0; the listener arrives here
	RoleSmee  = "smee"  // eth0
	RoleHegel = "hegel" // eth0
	RoleTink  = "tink"  // eth0
)

// Programs of the lab, for [Lab.Kill], [Lab.Restart] and [Options].
const (
	BroadcastInit = "broadcast-init"
	DHCPRelay     = "dhcp-relay"
	StackProxy    = "stack-proxy"
	StackBoots    = "stack-boots" // where the chart has a pod of its own for it
	Smee          = "smee"
	Hegel         = "hegel"
	Tink          = "tink"
	Tinkerbell    = "tinkerbell" // the one binary, in place of Smee, Hegel and Tink Server
	API           = "api"        // what it keeps its objects in
	Hardware      = "hardware"   // plays the Kubernetes API that Smee reads Hardware objects from
	DNS           = "dns"
	RA            = "ra"    // IPv6 router advertisements, for which iPXE waits
	DHCP6         = "dhcp6" // dnsmasq as the DHCPv6 server of a site of IPv6, which Smee is not
)

// Firmware is what a machine boots with.
type Firmware uint8

// The kinds of firmware.
const (
	BIOS Firmware = iota
	UEFI
)

func (f Firmware) String() string {
	if f == UEFI {
		return "uefi"
	}
	return "bios"
}

// Machine is a machine that the Tinkerbell services know: Smee reserves its address, Hegel has its metadata.
type Machine struct {
	Name     string // also its hostname
	MAC      net.HardwareAddr
	IP       netip.Addr // in LAN; Hegel knows the machine by it
	IP6      netip.Addr // in LAN6, where the site is one of IPv6: the first of [Machine.Range6]
	Firmware Firmware
	Userdata string // what Hegel serves as /2009-04-04/user-data
	Script   string // iPXE script in place of Smee's own that boots HookOS from port 8080
	// PXELinux is the configuration that the modern Tinkerbell serves as pxelinux.cfg/01-<MAC>.
	PXELinux string
	// ScriptURL is told to the machine in place of Smee's script.
	ScriptURL string
	Lease     time.Duration // default one day
	NoPXE     bool          // DHCP only
	NoIPv4    bool          // its firmware boots by IPv6 alone
	HTTPBoot  bool          // UEFI only: its firmware boots by HTTP, without PXE
	// Authority is a file in DER with the certificate authority whose servers UEFI firmware trusts, in HTTP boot by TLS.
	Authority string
	// SecureBoot has UEFI firmware start only what these keys of Debian's package ovmf sign: "ms" or "snakeoil".
	SecureBoot string
	// BootFile is what the modern Tinkerbell has firmware load in place of iPXE.
	BootFile string
}

// Command is a program that the caller supplies.
type Command struct {
	Path string
	Args []string
	Env  []string // "NAME=value"
}

// Options say what a lab consists of.
type Options struct {
	// Machines that Smee and Hegel know.
	Machines []Machine
	// RunDir receives logs and generated configuration. Default: build/lab/<id> in the repository.
	RunDir string
	// Artifacts is the directory that stack-proxy serves on 8080. Default: an empty one.
	Artifacts string
	// Tink is the server for port 42113, at [TinkIP]. Without a Path there is none.
	Tink Command
	// Hardware is a server that lists Hardware objects as the Kubernetes API does, at [HardwareAddr]; the lab adds
	// "-file" and the objects to its arguments. Smee then reads from it, and not from its file, which it parses anew for
	// each lookup. Without a Path there is none.
	Hardware Command
	// Segment is where the machines' addresses are, in place of [LAN]: see [Lab.AddSegment].
	Segment netip.Prefix
	// Tinkerbell is the one binary (0.23 or later). It runs in [RoleSmee] in place of Smee, Hegel and Tink Server, with
	// an API server beside it, and stack-proxy has the preset for it.
	Tinkerbell *program.Tinkerbell
	// Routes is stack-proxy's routes file, in YAML; empty: the routes of its preset.
	Routes string
	// Certificates is a directory that stack-proxy has at [CertificatesInPod], for its routes with TLS. Empty: none.
	Certificates string
	// IPv6 makes it a site of IPv6: pods and service have IPv6 addresses, too, the router advertises that addresses come
	// by DHCPv6, machines are told nothing but IPv6 addresses, and Smee answers no DHCP.
	IPv6 bool
	// Programs are executables in place of those of the pod that the lab builds, by name.
	Programs map[string]string
	// Without names programs that are not started; [Lab.Restart] starts one later.
	Without []string
	// Env adds "NAME=value" to a program's environment, by name; a later value wins.
	Env map[string][]string
	// Args replaces a service's arguments "-flag", "value" after the generated ones, by name.
	Args map[string][]string
	// Security replaces what a program of the pod is confined to, by name.
	Security map[string]*Security
	// Logf tells progress. Default: silence.
	Logf func(format string, args ...any)
}

// Lab is one running lab.
type Lab struct {
	id     string
	dir    string // /run/stack-lab/<id>
	opts   Options
	bin    binaries
	keep   *lifeline
	node   *Proc
	failed chan error

	mu       sync.Mutex
	roles    []string
	procs    map[string]*Proc
	records  map[string][]netip.Addr
	addrs    map[string]netip.Addr // of Smee, Hegel and Tink
	taps     int
	down     bool // or about to be: nothing is added any more
	detached bool
}

// Up builds what is not built yet and starts a lab. It returns when every program is ready; when one is not, the
// error names it and quotes the end of its log, and nothing is left behind. Leftovers of dead labs are removed
// first.
func Up(ctx context.Context, opts Options) (*Lab, error) {
	if err := Preflight(); err != nil {
		return nil, err
	}
	if opts.Logf == nil {
		opts.Logf = func(string, ...any) {}
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	swept, err := Sweep()
	if err != nil {
		return nil, err
	}
	for _, id := range swept {
		opts.Logf("removed what was left of lab %s", id)
	}
	bin, err := build(ctx, opts)
	if err != nil {
		return nil, err
	}
	l := &Lab{
		opts:    opts,
		bin:     bin,
		failed:  make(chan error, 16),
		procs:   map[string]*Proc{},
		records: map[string][]netip.Addr{},
		addrs:   map[string]netip.Addr{Smee: SmeeIP, Hegel: HegelIP, Tink: TinkIP},
	}
	if err := l.up(ctx); err != nil {
		return nil, errors.Join(err, l.Down())
	}
	return l, nil
}

func (l *Lab) up(ctx context.Context) error {
	if err := l.claim(); err != nil {
		return err
	}
	if l.opts.Artifacts == "" {
		l.opts.Artifacts = filepath.Join(l.opts.RunDir, "artifacts")
		if err := os.MkdirAll(l.opts.Artifacts, 0o755); err != nil {
			return fmt.Errorf("failed to make artifacts directory: %w", err)
		}
	}
	if err := errors.Join(l.writeRoutes(), l.makeBootsDir()); err != nil {
		return err
	}
	if err := l.wire(); err != nil {
		return err
	}
	if err := l.writeResolvConf(); err != nil {
		return err
	}
	if err := l.startNode(); err != nil {
		return err
	}
	for _, name := range startOrder {
		if l.opts.leavesOut(name) {
			continue
		}
		l.opts.Logf("starting %s", name)
		if err := l.Restart(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// Guide tells a person how to look into the lab.
func (l *Lab) Guide() string {
	var b strings.Builder
	fmt.Fprintf(&b, "lab %s is up; logs are in %s\n\n", l.id, l.opts.RunDir)
	fmt.Fprintf(&b, "  %-28s %s\n", "service IP", ServiceIP)
	for _, role := range l.Roles() {
		fmt.Fprintf(&b, "  %-28s ip netns exec %s%s-%s bash\n", "enter "+role, netnsPrefix, l.id, role)
	}
	fmt.Fprintf(&b, "  %-28s nsenter -t %d -n -p -m bash\n", "enter the node with its /proc", l.NodePid())
	fmt.Fprintf(&b, "  %-28s tcpdump -ni br0 (in lan)\n", "watch the LAN")
	fmt.Fprintf(&b, "  %-28s go run ./cmd/lab down %s (in test/e2e)\n", "take it down", l.id)
	return b.String()
}

// Programs lists the names of the programs that a lab starts, in that order.
func Programs() []string { return slices.Clone(startOrder) }

// ID is part of the names of the lab's namespaces.
func (l *Lab) ID() string { return l.id }

// RunDir is where logs and generated configuration are.
func (l *Lab) RunDir() string { return l.opts.RunDir }

// Failed delivers the unexpected end of a program as it happens. An end that [Lab.Kill], [Lab.Stop] or [Lab.Down]
// caused is not delivered.
func (l *Lab) Failed() <-chan error { return l.failed }

// Down ends everything: programs, namespaces, mounts. The logs stay in [Lab.RunDir]. It may be called twice.
func (l *Lab) Down() error {
	l.mu.Lock()
	l.down = true
	detached := l.detached
	procs := slices.Collect(maps.Values(l.procs))
	l.mu.Unlock()
	if l.keep == nil || detached {
		return nil
	}
	if err := l.keep.end(); err != nil {
		return err
	}
	for _, proc := range procs {
		<-proc.done
	}
	return nil
}

// Detach leaves the lab running when the calling process ends; "lab down" ends it then. The Lab must not be used
// afterwards.
func (l *Lab) Detach() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return errors.New("failed to detach lab: it is down")
	}
	if err := l.keep.detach(l.dir); err != nil {
		return err
	}
	l.down, l.detached = true, true
	return nil
}

func (o *Options) check() error {
	var faults []error
	known := func(field string, names ...string) {
		for _, name := range names {
			if !slices.Contains(startOrder, name) {
				faults = append(faults, fmt.Errorf("%s: the lab knows no program %q", field, name))
			}
		}
	}
	known("Without", o.Without...)
	known("Programs", slices.Sorted(maps.Keys(o.Programs))...)
	known("Env", slices.Sorted(maps.Keys(o.Env))...)
	known("Args", slices.Sorted(maps.Keys(o.Args))...)
	known("Security", slices.Sorted(maps.Keys(o.Security))...)
	seen := map[string]string{}
	for _, m := range o.Machines {
		if !o.machinesNet().Contains(m.IP) {
			faults = append(faults, fmt.Errorf("machine %s: address %s is not in %s", m.Name, m.IP, o.machinesNet()))
		}
		if len(m.MAC) != 6 {
			faults = append(faults, fmt.Errorf("machine %s: %q is not an Ethernet address", m.Name, m.MAC))
		}
		keys := []string{m.Name, m.MAC.String(), m.IP.String()}
		if o.IPv6 {
			keys = append(keys, m.IP6.String())
			if !LAN6.Contains(m.IP6) || m.IP6 != m.Range6().Addr() {
				faults = append(faults, fmt.Errorf("machine %s: address %s is not the first of a /%d in %s",
					m.Name, m.IP6, rangeBits, LAN6))
			}
		}
		for _, key := range keys {
			if other, ok := seen[key]; ok {
				faults = append(faults, fmt.Errorf("machine %s: %s belongs to machine %s", m.Name, key, other))
			}
			seen[key] = m.Name
		}
	}
	return errors.Join(faults...)
}
