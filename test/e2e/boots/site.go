package boots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/observe"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/tink"
)

// Ports of the service IP.
const (
	smeeHTTPPort = 7171
	filesPort    = 8080
	mirrorPort   = lab.TinkerbellFilesPort // a mirror of OS files, which tears them
)

// rogueIP is the second DHCP server's.
var rogueIP = netip.MustParseAddr("192.0.2.3")

var errServed = errors.New("the boot file is served")

// loaders is the name of the server of boot files: Smee, until another takes its place.
const loaders = "loaders"

// routes are the preset's, but boot files come from a server of their own name, Tink's calls are read, and there is a
// mirror.
var routes = fmt.Sprintf(`preset: classic
routes:
  - {name: tink, protocol: grpc, listen: 42113, backends: "tink-server:42113"}
  - {name: smee-tftp, protocol: tftp, listen: 69, backends: "%s:69", optional: true}
  - {name: mirror, protocol: http, listen: %d, backends: "%s"}
`, loaders, mirrorPort, netip.AddrPortFrom(lab.TinkIP, mirrorPort))

// site is a lab in which machines meet their faults.
type site struct {
	*lab.Lab
	dir     string // of logs
	media   machine.Media
	sniffer *observe.Sniffer
	mirror  *http.Server
}

// open brings a site up that knows the machines of the faults.
func open(ctx context.Context, o Options, faults []Fault, watch func(observe.Event)) (*site, error) {
	logs := filepath.Join(o.Dir, "logs")
	if err := os.RemoveAll(logs); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(logs, 0o755); err != nil {
		return nil, err
	}
	standIn, err := program.Command(ctx, "tink-standin")
	if err != nil {
		return nil, err
	}
	opts := lab.Options{
		RunDir: logs, Artifacts: o.Media.Dir, Routes: routes, Logf: o.Logf,
		Args: map[string][]string{lab.Smee: {"-extra-kernel-args", machine.KernelArgs}},
		Tink: lab.Command{Path: standIn, Args: []string{"-listen", netip.AddrPortFrom(lab.TinkIP, 42113).String()}},
	}
	workflows := map[string][]tink.Workflow{}
	var rogueFor lab.Machine
	for i, f := range faults {
		m := machineOf(f, i)
		if !f.unknown {
			opts.Machines = append(opts.Machines, m)
		}
		if f.Cause == "agent-refused" {
			opts.Tink.Args = append(opts.Tink.Args, "-refuse", m.MAC.String())
		}
		if f.Cause == "other-dhcp-server" {
			rogueFor = m
		}
	}
	file := filepath.Join(logs, "workflows.json")
	text, err := json.Marshal(workflows)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return nil, fmt.Errorf("failed to write workflows: %w", err)
	}
	opts.Tink.Args = append(opts.Tink.Args, "-workflows", file)
	l, err := lab.Up(ctx, opts)
	if err != nil {
		return nil, err
	}
	s := &site{Lab: l, dir: logs, media: o.Media}
	err = s.equip(rogueFor)
	if err == nil {
		s.sniffer, err = observe.Watch(l, filepath.Join(o.Dir, "boots.pcapng"), watch)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// equip starts what a lab has not.
func (s *site) equip(rogueFor lab.Machine) error {
	if err := s.SetRecord(loaders, lab.SmeeIP); err != nil {
		return err
	}
	var listener net.Listener
	err := s.Do(lab.RoleTink, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(lab.TinkIP, mirrorPort).String())
		return err
	})
	if err != nil {
		return fmt.Errorf("failed to start mirror: %w", err)
	}
	s.mirror = &http.Server{Handler: http.HandlerFunc(tear), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.mirror.Serve(listener) }() // until close
	if rogueFor.MAC == nil {
		return nil
	}
	// Another team's DHCP server, which answers this machine alone. Of two offers iPXE takes the one with the higher
	// priority (option 175.1), and does not wait for a proxy where 175.176 says that there is none.
	given := netip.MustParseAddr("192.0.2.200")
	_, err = s.AddDHCPServer("rogue", rogueIP, given, given.Next(),
		"--dhcp-host="+rogueFor.MAC.String()+","+given.String(), "--dhcp-ignore=tag:!known",
		"--dhcp-option-force=encap:175,1,5b", "--dhcp-option-force=encap:175,176,1b")
	return err
}

// tear announces a kernel and sends the first half of it.
func tear(w http.ResponseWriter, _ *http.Request) {
	const size = 8 << 20
	w.Header().Set("Content-Length", strconv.Itoa(size))
	if _, err := io.CopyN(w, zeros{}, size/2); err != nil {
		return
	}
	panic(http.ErrAbortHandler)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// enter brings a phase about.
func (s *site) enter(phase int) error {
	switch phase {
	case withoutHegel:
		return s.Kill(lab.Hegel)
	case otherLoaders:
		return s.replaceLoaders("snp.efi", "ipxe.efi") // ARM's, as Smee serves it, under the name of the other
	case withoutSmee:
		return s.Kill(lab.Smee)
	}
	return nil
}

// replaceLoaders has dnsmasq serve a boot file of Smee's under the name of that of another architecture, and nothing
// else.
func (s *site) replaceLoaders(file, as string) error {
	root := filepath.Join(s.dir, "tftp")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	smee := netip.AddrPortFrom(lab.SmeeIP, smeeHTTPPort)
	response, err := s.Client(lab.RolePod).Get("http://" + smee.String() + "/ipxe/" + file)
	if err != nil {
		return fmt.Errorf("failed to get another architecture's boot file: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || len(body) == 0 {
		return fmt.Errorf("failed to get another architecture's boot file: %s, %d bytes, %w",
			response.Status, len(body), err)
	}
	if err := os.WriteFile(filepath.Join(root, as), body, 0o644); err != nil {
		return err
	}
	_, err = s.Start(lab.Process{
		Name: "loaders", Role: lab.RoleHegel, Path: "dnsmasq", Watch: true,
		Args: []string{
			"--keep-in-foreground", "--log-facility=-", "--conf-file=/dev/null", "--user=root", "--port=0",
			"--enable-tftp", "--tftp-root=" + root, "--listen-address=" + lab.HegelIP.String(), "--bind-interfaces",
		},
		Tmpfs: []string{"/run"}, // its pid file
	})
	if err != nil {
		return err
	}
	if err := s.SetRecord(loaders, lab.HegelIP); err != nil {
		return err
	}
	return s.untilGone("undionly.kpxe")
}

// untilGone waits until stack-proxy has compared a loader that it keeps: until then it serves what it has.
func (s *site) untilGone(file string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		conn, err := s.Dial(lab.RolePod)(ctx, "udp", netip.AddrPortFrom(lab.PodIP, 69).String())
		if err != nil {
			return err
		}
		err = netboot.ReadBlocks(ctx, conn, file, func([]byte) error { return errServed }, func() {})
		_ = conn.Close()
		switch {
		case err != nil && !errors.Is(err, errServed) && ctx.Err() == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("failed to have %s refused: %w", file, err)
		}
		time.Sleep(time.Second)
	}
}

func (s *site) close() error {
	var faults []error
	if s.sniffer != nil {
		faults = append(faults, s.sniffer.Close())
	}
	if s.mirror != nil {
		faults = append(faults, s.mirror.Close())
	}
	return errors.Join(append(faults, s.Down())...)
}
