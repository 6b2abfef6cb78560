package boots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/machine"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/tink"
)

// set is a kind of lab in which cases are staged: those that share one meet their faults at the same time.
type set struct {
	name string
	// change adds to the lab's options, and ready to the lab.
	change func(*scene, *lab.Options) error
	ready  func(context.Context, *scene) error
}

// scene is a lab with cases in it.
type scene struct {
	*site
	log        *slog.Logger
	artifacts  string        // the directory that port 8080 serves
	emulators  chan struct{} // how many virtual machines run at once, in all scenes
	clockJumps time.Time
	closers    []io.Closer
	api        func() error // starts what stack-boots asks for objects, once the lab is up
}

// Files of port 8080 beside those of the media.
const (
	bigFile       = "initramfs-big"
	bigSize       = 135 << 20
	truncatedFile = "vmlinuz-truncated"
	loaderFile    = "BOOTX64.EFI"
)

// openScene brings a lab up whose services know the machines of cases.
func openScene(ctx context.Context, o Options, kind *set, cases []Case) (s *scene, err error) {
	dir := filepath.Join(o.Dir, "logs-"+kind.name)
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(dir, "moves.log"))
	if err != nil {
		return nil, err
	}
	s = &scene{
		site: &site{dir: dir, media: o.Media}, log: slog.New(slog.NewTextHandler(file, nil)),
		artifacts: filepath.Join(dir, "artifacts"), closers: []io.Closer{file},
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.fill(); err != nil {
		return nil, err
	}
	opts := lab.Options{
		RunDir: dir, Artifacts: s.artifacts, Logf: o.Logf,
		Args: map[string][]string{lab.Smee: {"-extra-kernel-args", machine.KernelArgs}},
		// What stack-boots has heard stays, for whoever looks into a case later.
		Env: map[string][]string{lab.StackBoots: {"STACK_BOOTS_HISTORY_FILE=/run/boots/history"}},
	}
	for i, c := range cases {
		for j, m := range c.machines(i) {
			if !c.Unknown && !(c.UnknownToo && j > 0) {
				opts.Machines = append(opts.Machines, m)
			}
		}
	}
	opts.Machines = append(opts.Machines, known)
	if opts.Tink, err = tinkFor(ctx, dir, o.Media, opts.Machines); err != nil {
		return nil, err
	}
	if kind.change != nil {
		if err := kind.change(s, &opts); err != nil {
			return nil, err
		}
	}
	if s.Lab, err = lab.Up(ctx, opts); err != nil {
		return nil, err
	}
	if s.api != nil {
		err = s.api()
	}
	if kind.ready != nil {
		err = errors.Join(err, kind.ready(ctx, s))
	}
	return s, err
}

// known is a machine of every scene that boots well where a case needs another one.
var known = lab.Machine{
	Name: "known", MAC: net.HardwareAddr{0x52, 0x54, 0x00, 0x5e, 0x02, 0xff}, IP: netip.MustParseAddr("192.0.2.254"),
}

// fill makes the directory of files.
func (s *scene) fill() error {
	if err := os.MkdirAll(s.artifacts, 0o755); err != nil {
		return err
	}
	for _, name := range []string{machine.KernelFile, machine.InitramfsFile, machine.ArtifactFile} {
		if err := os.Link(filepath.Join(s.media.Dir, name), filepath.Join(s.artifacts, name)); err != nil {
			return fmt.Errorf("failed to place %s: %w", name, err)
		}
	}
	kernel, err := os.ReadFile(filepath.Join(s.media.Dir, machine.KernelFile))
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(s.artifacts, truncatedFile), kernel[:len(kernel)/3], 0o644),
		os.WriteFile(filepath.Join(s.artifacts, loaderFile), make([]byte, 1<<20), 0o644),
		os.WriteFile(filepath.Join(s.artifacts, bigFile), nil, 0o644),
		os.Truncate(filepath.Join(s.artifacts, bigFile), bigSize),
	)
}

// tinkFor makes the stand-in of Tink Server that has a workflow for each machine: to stream an image.
func tinkFor(ctx context.Context, dir string, media machine.Media, machines []lab.Machine) (lab.Command, error) {
	path, err := program.Command(ctx, "tink-standin")
	if err != nil {
		return lab.Command{}, err
	}
	workflows := map[string][]tink.Workflow{}
	for _, m := range machines {
		worker := m.MAC.String()
		workflows[worker] = []tink.Workflow{{ID: "install-" + m.Name, Actions: []tink.Action{{
			TaskName: "os-installation", Name: "stream-image", Image: "image2disk", Timeout: 600, WorkerID: worker,
			Environment: []string{
				"IMG_URL=" + url(filesPort, "/"+machine.ArtifactFile), "IMG_SHA512=" + media.ArtifactSHA512,
			},
		}}}}
	}
	text, err := json.Marshal(workflows)
	if err != nil {
		return lab.Command{}, err
	}
	file := filepath.Join(dir, "workflows.json")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return lab.Command{}, fmt.Errorf("failed to write workflows: %w", err)
	}
	return lab.Command{Path: path, Args: []string{
		"-listen", netip.AddrPortFrom(lab.TinkIP, 42113).String(), "-workflows", file,
	}}, nil
}

// nft loads a rule set in the network namespace of a role.
func (s *scene) nft(ctx context.Context, role, rules string) error {
	return s.Run(ctx, lab.Process{
		Name: fmt.Sprintf("nft-%s-%d", role, time.Now().UnixNano()), Role: role, Path: "nft", Args: []string{"-f", "-"},
		Stdin: strings.NewReader(rules),
	})
}

// listen listens where a service of the site is.
func (s *scene) listen(role string, at netip.AddrPort) (listener net.Listener, err error) {
	err = s.Do(role, func() (err error) {
		listener, err = net.Listen("tcp", at.String())
		return err
	})
	return listener, err
}

func (s *scene) close() error {
	var faults []error
	for _, each := range s.closers {
		faults = append(faults, each.Close())
	}
	if s.Lab != nil {
		faults = append(faults, s.keepHistory(), s.Down())
	}
	return errors.Join(faults...)
}

// keepHistory copies what stack-boots has heard out of the lab.
func (s *scene) keepHistory() error {
	for _, name := range []string{"history.older", "history"} {
		text, err := os.ReadFile(filepath.Join("/run/stack-lab", s.ID(), "boots", name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(s.dir, name), text, 0o644)
		}
		if err != nil {
			return fmt.Errorf("failed to keep the history of boots: %w", err)
		}
	}
	return nil
}

// dialOption has a gRPC client dial from a machine.
func dialOption(p *player) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return p.dial(ctx, "tcp", address)
	})
}
