package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tinkerbell/stack/test/e2e/lab"
)

// gave are what servers write down when they give a lease: in dhcpd's file of leases, and in the logs.
var gave = []string{"binding state active", "DHCPACK", "DHCPREQUEST", "DHCP4_LEASE_ALLOC"}

// Servers asks behind the relay of each server with pools of addresses, which names no boot file, and looks whether a
// lease was given.
func Servers(ctx context.Context, o Options) (results []Result, err error) {
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
			"DHCP_RELAY_AGENT_OPTIONS=circuit-id,remote-id,link-selection,server-id-override",
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
	if s.laptop, err = s.AddHost("laptop", net.HardwareAddr{0x52, 0x54, 0, 0x5e, 3, 1}); err != nil {
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
