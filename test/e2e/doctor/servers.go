package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// gave are what servers write down when they give a lease: in dhcpd's file of leases, and in the logs.
var gave = []string{"binding state active", "DHCPACK", "DHCPREQUEST", "DHCP4_LEASE_ALLOC"}

// Servers asks in labs of other servers than Smee's: of the modern Tinkerbell, and of those with pools.
func Servers(ctx context.Context, o Options) (results []Result, err error) {
	for _, ask := range []func(context.Context, Options) ([]Result, error){modern, pools} {
		some, err := ask(ctx, o)
		if results = append(results, some...); err != nil {
			return results, err
		}
	}
	return results, nil
}

// modern asks where the one binary of Tinkerbell is everything.
func modern(ctx context.Context, o Options) (results []Result, err error) {
	tinkerbell, err := program.BuildTinkerbell(ctx, o.Logf)
	if err != nil {
		return nil, err
	}
	return other(ctx, o, "Tinkerbell "+tinkerbell.Version, lab.Options{
		Tinkerbell: &tinkerbell, Machines: []lab.Machine{machine(good), machine(notAllowed)},
	}, func(*site) error { return nil }, []Fault{
		{stage: nothing},
		{Name: "unknown MAC", Finding: "no-hardware", machine: unknown, Mute: true, stage: nothing},
		{Name: "allowPXE false", Finding: "netboot-not-allowed", machine: notAllowed, stage: nothing},
		{Name: "relay gone", Finding: "relay-silent", Names: lab.ServiceIP.String(), Mute: true,
			stage: killed(lab.DHCPRelay)},
		{Name: "Tinkerbell gone", Finding: "server-silent", Names: lab.ServiceIP.String(), Mute: true,
			stage: killed(lab.Tinkerbell)},
	})
}

// other asks in a lab of its own.
func other(
	ctx context.Context, o Options, name string, options lab.Options, start func(*site) error, faults []Fault,
) (results []Result, err error) {
	s := &site{dir: filepath.Join(o.Dir, strings.ReplaceAll(name, " ", "-")), args: map[string][]string{}}
	if options.Artifacts, err = s.prepare(ctx); err != nil {
		return nil, err
	}
	if options.Tinkerbell == nil {
		if options.Tink, err = s.tink(ctx); err != nil {
			return nil, err
		}
	}
	options.RunDir, options.Logf = filepath.Join(s.dir, "logs"), o.Logf
	if s.Lab, err = lab.Up(ctx, options); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := errors.Join(start(s), s.plugIn()); err != nil {
		return nil, err
	}
	for _, f := range faults {
		if f.Name == "" {
			f.Name = "healthy"
		}
		f.Name += " (" + name + ")"
		results = append(results, s.meet(ctx, f, o))
	}
	return results, nil
}

// pools asks behind the relay of each server with pools of addresses, which names no boot file, and looks whether a
// lease was given.
func pools(ctx context.Context, o Options) (results []Result, err error) {
	for _, server := range lab.PoolServers {
		if _, err := exec.LookPath(server.Program); err != nil {
			o.Logf("%s: needs Debian's package %s", server.Name, server.Package)
			continue
		}
		r, err := serve(ctx, server, o)
		if err != nil {
			return results, err
		}
		results = append(results, r)
	}
	return results, nil
}

// serve asks one of them, with a MAC that no machine has.
func serve(ctx context.Context, server lab.PoolServer, o Options) (r Result, err error) {
	s := &site{dir: filepath.Join(o.Dir, server.Name)}
	if err := errors.Join(os.RemoveAll(s.dir), os.MkdirAll(s.dir, 0o755), s.build(ctx)); err != nil {
		return r, err
	}
	s.Lab, err = lab.Up(ctx, lab.Options{
		RunDir: filepath.Join(s.dir, "logs"), Without: []string{lab.Smee, lab.Hegel, lab.StackProxy}, Logf: o.Logf,
		Env: map[string][]string{lab.DHCPRelay: {
			"DHCP_RELAY_LISTENERS=macvlan0=" + lab.GatewayIP.String(),
			"DHCP_RELAY_AGENT_OPTIONS=circuit-id,remote-id,link-selection",
		}},
	})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if _, err := s.AddRouter("router"); err != nil {
		return r, err
	}
	proc, err := s.StartPools(ctx, server)
	if err != nil {
		return r, err
	}
	if s.laptop, err = s.AddHost("laptop", laptopMAC); err != nil {
		return r, err
	}
	r = s.meet(ctx, Fault{
		Name: "no boot file of " + server.Name, Finding: "no-boot-file", Names: "192.0.2.", machine: good, stage: nothing,
	}, o)
	for _, path := range []string{proc.LogPath(), filepath.Join(s.RunDir(), "dhcpd.leases")} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // of another server
		}
		for _, word := range gave {
			if strings.Contains(string(text), word) {
				r.OK, r.Trouble = false, fmt.Sprintf("%s says %s: a lease was given", path, word)
			}
		}
	}
	return r, nil
}
