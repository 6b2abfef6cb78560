package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/miekg/dns"

	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// startOrder is what a lab consists of besides its node: names first, then the services, then the pod as a
// kubelet starts it.
var startOrder = []string{
	DNS, RA, Hardware, API, Smee, Hegel, Tinkerbell, Tink, DHCP6, BroadcastInit, StackBoots, DHCPRelay, StackProxy,
}

// Admin ports of the pod's programs, in [RolePod].
const (
	RelayAdminPort = 9067
	ProxyAdminPort = 9069
	BootsAdminPort = 9070
)

// unprivileged is the user that the chart gives stack-proxy.
const unprivileged = 65532

// readyTimeout is how long a program that starts may print nothing new, not counting what it waits for a processor.
const readyTimeout = 30 * time.Second

// Restart starts a program of the lab, ending it first where it runs, and waits until it is ready. The error
// names the program and quotes the end of its log.
func (l *Lab) Restart(ctx context.Context, name string) error {
	program, ready, err := l.program(name)
	if err != nil {
		return err
	}
	if proc := l.Proc(name); proc != nil {
		if err := proc.end(syscall.SIGTERM, readyTimeout); err != nil {
			return err
		}
	}
	program.Name = name
	if security := l.opts.Security[name]; security != nil {
		program.Security = security
	}
	if name == DHCPRelay || name == StackProxy || name == StackBoots {
		shared := *program.Security
		shared.Shared = map[string]string{bootsInPod: l.bootsDir()}
		program.Security = &shared
	}
	program.Args = append(program.Args, l.opts.Args[name]...)
	program.Env = append(program.Env, l.opts.Env[name]...)
	if name == BroadcastInit {
		ctx, watch := progress.Begin(ctx, l.patience(name))
		defer watch.End()
		return l.Run(ctx, program) // an init container: it does its work and ends
	}
	program.Watch = true
	proc, err := l.Start(program)
	if err != nil {
		return err
	}
	if ready == nil {
		return nil
	}
	return l.WaitReady(ctx, proc, ready)
}

// WaitReady asks whether a program is ready until it is. It gives up when the program has ended, and when it has
// printed nothing new for half a minute, not counting what it waits for a processor.
func (l *Lab) WaitReady(ctx context.Context, proc *Proc, ready func(context.Context) error) error {
	patience := l.patience(proc.name)
	patience.Waited = proc.Starved
	err := progress.Until(ctx, patience, 25*time.Millisecond, func(ctx context.Context) error {
		select {
		case <-proc.done:
			return progress.Final(fmt.Errorf("%s ended before it was ready (%s)", proc.name, proc.cmd.ProcessState))
		default:
			return ready(ctx)
		}
	})
	if err != nil {
		return fmt.Errorf("%s did not start: %w: %s", proc.name, err, logTail(proc.log))
	}
	return nil
}

// program says how a program of the lab is run and how its readiness shows.
func (l *Lab) program(name string) (Process, func(context.Context) error, error) {
	switch name {
	case DNS:
		return l.helperProcess(RoleNode, "dns", l.zonePath()), func(context.Context) error {
			_, err := l.resolve(serviceName("smee"), dns.TypeA, time.Second)
			return err // a test may have taken the name away
		}, l.defaultZone()
	case RA:
		args := []string{"ra"}
		if l.opts.IPv6 {
			args = append(args, managed)
		}
		return l.helperProcess(RoleLAN, args...), nil, nil
	case DHCP6:
		process := l.dhcp6Server()
		return process, l.saysReady(DHCP6, "DHCPv6, static leases only on "), nil
	case Hardware:
		return l.hardware()
	case Smee:
		args, err := l.smeeArgs()
		url := "http://" + hostPort(l.addrOf(Smee), 7171) + "/healthcheck"
		return Process{Role: RoleSmee, Path: l.bin.smee, Args: args}, l.httpReady(RoleSmee, url), err
	case Hegel:
		args, err := l.hegelArgs()
		url := "http://" + hostPort(l.addrOf(Hegel), 50061) + "/healthz"
		return Process{Role: RoleHegel, Path: l.bin.hegel, Args: args}, l.httpReady(RoleHegel, url), err
	case API, Tinkerbell:
		if l.opts.Tinkerbell == nil {
			return Process{}, nil, fmt.Errorf("failed to start %s: Options.Tinkerbell names no program", name)
		}
		if name == Tinkerbell {
			return l.tinkerbell()
		}
		process, ready := l.api()
		return process, ready, nil
	case Tink:
		if l.opts.Tink.Path == "" {
			return Process{}, nil, errors.New("failed to start tink: Options.Tink names no program")
		}
		tink := Process{
			Role: RoleTink, Path: l.opts.Tink.Path,
			Args: slices.Clone(l.opts.Tink.Args), Env: slices.Clone(l.opts.Tink.Env),
		}
		return tink, l.tcpReady(RoleTink, hostPort(l.addrOf(Tink), 42113)), nil
	case BroadcastInit:
		return Process{
			Role: RolePod, Path: l.bin.broadcastInit,
			Env:      []string{"BROADCAST_INIT_HEAR=0s"}, // no machine is on yet
			Security: &Security{UID: 0, Capabilities: []int{unix.CAP_NET_ADMIN}},
		}, nil, nil
	case DHCPRelay:
		return Process{
			Role: RolePod, Path: l.bin.dhcpRelay,
			Env:      l.relayEnv(),
			Security: &Security{UID: 0, Capabilities: []int{unix.CAP_NET_RAW}},
		}, l.httpReady(RolePod, "http://"+hostPort(PodIP, RelayAdminPort)+"/readyz"), nil
	case StackBoots:
		return Process{
			Role: RolePod, Path: l.bin.stackBoots,
			Env: []string{
				"STACK_BOOTS_LISTEN_ADDRESS=" + bootsSocket, "STACK_BOOTS_LINES=true",
				"STACK_BOOTS_PUBLIC_ADDRESSES=" + l.opts.Service().String(),
			},
			Security: &Security{UID: unprivileged},
		}, l.httpReady(RolePod, "http://"+hostPort(PodIP, BootsAdminPort)+"/readyz"), nil
	case StackProxy:
		preset := "classic"
		if l.opts.Tinkerbell != nil {
			preset = "tinkerbell"
		}
		env := []string{
			"STACK_PROXY_PRESET=" + preset,
			"STACK_PROXY_BOOTS_ADDRESS=" + bootsSocket,
		}
		mounts := map[string]string{artifactsInPod: l.opts.Artifacts}
		if l.opts.Routes != "" {
			env = append(env, "STACK_PROXY_ROUTES_FILE="+filepath.Join(routesInPod, routesFile))
			mounts[routesInPod] = l.routesDir()
		}
		if l.opts.Certificates != "" {
			mounts[CertificatesInPod] = l.opts.Certificates
		}
		return Process{
			Role: RolePod, Path: l.bin.stackProxy,
			Env:      env,
			Security: &Security{UID: unprivileged, Mounts: mounts},
		}, l.httpReady(RolePod, "http://"+hostPort(PodIP, ProxyAdminPort)+"/readyz"), nil
	}
	return Process{}, nil, fmt.Errorf("failed to start %s: the lab knows no such program", name)
}

// Where the chart mounts what stack-proxy serves on 8080, and its routes file.
const (
	artifactsInPod = "/artifacts"
	routesInPod    = "/etc/stack-proxy"
	routesFile     = "routes.yaml"
)

// CertificatesInPod is where stack-proxy finds [Options.Certificates].
const CertificatesInPod = "/certs"

// The volume by which dhcp-relay and stack-proxy tell stack-boots of machines that boot. In the chart they do by its
// Service.
const (
	bootsInPod  = "/run/boots"
	bootsSocket = bootsInPod + "/events.sock"
)

func (l *Lab) bootsDir() string { return filepath.Join(l.dir, "boots") }

func (l *Lab) makeBootsDir() error {
	err := os.MkdirAll(l.bootsDir(), 0o777)
	if err == nil {
		err = os.Chmod(l.bootsDir(), 0o777) // as an emptyDir is
	}
	if err != nil {
		return fmt.Errorf("failed to make the volume for boots: %w", err)
	}
	return nil
}

func (l *Lab) routesDir() string { return filepath.Join(l.opts.RunDir, "routes") }

func (l *Lab) writeRoutes() error {
	if l.opts.Routes == "" {
		return nil
	}
	err := os.MkdirAll(l.routesDir(), 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(l.routesDir(), routesFile), []byte(l.opts.Routes), 0o644)
	}
	if err != nil {
		return fmt.Errorf("failed to write routes: %w", err)
	}
	return nil
}

func (l *Lab) helperProcess(role string, job ...string) Process {
	return Process{Role: role, Path: "/proc/self/exe", Args: job, argv0: helperName}
}

// defaultZone lets the pod's DNS know the services, unless a test changed it already.
func (l *Lab) defaultZone() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := os.Stat(l.zonePath()); err == nil {
		return nil
	}
	if l.opts.IPv6 { // also where Tinkerbell answers DHCPv6: its other servers listen by IPv4
		l.records[serviceName(dhcp6Service)] = []netip.Addr{DHCP6IP}
	}
	if l.opts.Tinkerbell != nil { // one name for everything else
		l.records[serviceName(tinkerbellService)] = []netip.Addr{SmeeIP}
		return l.writeZone()
	}
	for program, service := range serviceOf {
		l.records[serviceName(service)] = []netip.Addr{l.addrs[program]}
	}
	return l.writeZone()
}

// smeeArgs writes Smee's file of machines and returns its flags. Everything a machine is told points to the
// service IP.
func (l *Lab) smeeArgs() ([]string, error) {
	path := filepath.Join(l.opts.RunDir, "smee.yaml")
	if err := program.WriteJSON(path, smeeRecords(&l.opts)); err != nil {
		return nil, err
	}
	service, own := l.opts.Service().String(), l.addrOf(Smee).String()
	backend := []string{"-backend-kube-enabled=false", "-backend-file-enabled=true", "-backend-file-path", path}
	if l.opts.Hardware.Path != "" {
		backend = []string{"-backend-kube-api", "http://" + HardwareAddr.String(), "-backend-kube-namespace", Namespace}
	}
	return append(backend,
		"-dhcp-enabled="+strconv.FormatBool(!l.opts.IPv6),
		"-dhcp-addr", "0.0.0.0:67",
		"-dhcp-ip-for-packet", service,
		"-dhcp-syslog-ip", service,
		"-dhcp-tftp-ip", service,
		"-dhcp-http-ipxe-binary-host", service,
		"-dhcp-http-ipxe-binary-port", "7171",
		"-dhcp-http-ipxe-script-host", service,
		"-dhcp-http-ipxe-script-port", "7171",
		"-tftp-addr", own,
		"-syslog-addr", own,
		"-http-addr", own,
		"-http-port", "7171",
		"-osie-url", "http://"+hostPort(l.opts.Service(), 8080),
		"-tink-server", hostPort(l.opts.Service(), 42113),
		"-trusted-proxies", PodIP.String()+"/32",
	), nil
}

func (l *Lab) hegelArgs() ([]string, error) {
	path := filepath.Join(l.opts.RunDir, "hegel.yaml")
	if err := program.WriteJSON(path, hegelInstances(&l.opts)); err != nil {
		return nil, err
	}
	return []string{
		"--backend", "flatfile",
		"--flatfile-path", path,
		"--http-addr", hostPort(l.addrOf(Hegel), 50061),
		"--trusted-proxies", PodIP.String() + "/32",
	}, nil
}

// smeeRecords is the format of Smee's file backend.
func smeeRecords(o *Options) map[string]any {
	network := o.machinesNet()
	records := map[string]any{}
	for _, m := range o.Machines {
		arch, lease := "x86_64", m.Lease
		if lease == 0 {
			lease = 24 * time.Hour
		}
		netboot := map[string]any{"allowPxe": !m.NoPXE}
		if m.Script != "" {
			netboot["ipxeScript"] = m.Script
		}
		if m.ScriptURL != "" {
			netboot["ipxeScriptUrl"] = m.ScriptURL
		}
		records[m.MAC.String()] = map[string]any{
			"ipAddress":        m.IP.String(),
			"subnetMask":       netmask(network),
			"defaultGateway":   GatewayIP.String(),
			"nameServers":      []string{GatewayIP.String()},
			"hostname":         m.Name,
			"domainName":       "lab.example",
			"broadcastAddress": broadcastOf(network).String(),
			"ntpServers":       []string{GatewayIP.String()},
			"leaseTime":        int(lease / time.Second),
			"arch":             arch,
			"netboot":          netboot,
		}
	}
	return records
}

// hegelInstances is the format of Hegel's flat file, which knows a machine by its public IPv4 address. It takes any
// text for one, an IPv6 address too.
func hegelInstances(o *Options) []any {
	instances := []any{}
	for _, m := range o.Machines {
		for _, addr := range o.Addrs(m) {
			instances = append(instances, map[string]any{
				"userdata": m.Userdata,
				"metadata": map[string]any{
					"id":            m.MAC.String(),
					"hostname":      m.Name,
					"localHostname": m.Name,
					"plan":          "lab",
					"facility":      "lab",
					"tags":          []string{m.Firmware.String()},
					"ipv4":          map[string]any{"local": addr.String(), "public": addr.String()},
				},
			})
		}
	}
	return instances
}

// Client is an HTTP client whose connections start in a role's namespace. It gives up when nothing comes for 30 s.
func (l *Lab) Client(role string) *http.Client {
	return &http.Client{
		Transport: progress.Transport{
			RoundTripper: &http.Transport{DialContext: l.Dial(role), DisableKeepAlives: true},
			Patience:     progress.Patience{Quiet: 30 * time.Second},
		},
	}
}

// Page reads a page as a host of the lab. An answer other than 200 is an error.
func (l *Lab) Page(ctx context.Context, role, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := l.Client(role).Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 64<<20))
	if err != nil {
		return "", fmt.Errorf("failed to read %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s: %.200s", url, response.Status, body)
	}
	return string(body), nil
}

func (l *Lab) httpReady(role, url string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := l.Page(ctx, role, url)
		return err
	}
}

func (l *Lab) tcpReady(role, addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := l.Dial(role)(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

func hostPort(addr netip.Addr, port uint16) string {
	return net.JoinHostPort(addr.String(), strconv.Itoa(int(port)))
}
