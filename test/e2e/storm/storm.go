// Package storm has many machines boot at once through a pod, ours or the former chart's, in a lab, and measures how
// long that takes and what it costs. The machines' part is package machines.
package storm

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/tinkerbell/ipxedust/binary"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/storm/machines"
	"github.com/tinkerbell/stack/test/e2e/tink"
)

// Options say what a storm is of.
type Options struct {
	Candidate string // [Ours] or [Former]
	Machines  int
	// Loss is how many of 100 packets the machines' network loses, in either direction.
	Loss float64
	// Kernel, Initramfs and Artifact are the sizes of these files, in bytes. Default: 2, 8 and 1 MiB.
	Kernel, Initramfs, Artifact int64
	// Spread is the time in which the machines are switched on. Default 1 s.
	Spread time.Duration
	// Patience is how long a step may go without anything new. Default 90 s.
	Patience time.Duration
	// Dir receives logs and what machines boot.
	Dir string
	// Peers is a directory in which isc-dhcp-relay's package is unpacked, for the former chart.
	Peers string
	// Unlimited leaves the containers' limits of memory out, which ours otherwise have as the chart sets them.
	Unlimited bool
	Logf      func(format string, args ...any)
}

// Segment is where the machines' addresses are: a range for benchmarks (RFC 2544).
var Segment = netip.MustParsePrefix("198.18.0.0/16")

// machinesHost is the host in the lab that has all machines.
const machinesHost = "storm"

// Site is a lab with a candidate in its pod, before or between storms.
type Site struct {
	Lab *lab.Lab

	opts       Options
	plan       string // file
	machines   string // program
	role       string
	candidate  *candidate
	containers *containers
	storms     int
}

// Open brings a lab up, with a candidate in its pod. The caller ends with [Site.Close].
func Open(ctx context.Context, o Options) (*Site, error) {
	s := &Site{opts: o.withDefaults()}
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (o Options) withDefaults() Options {
	for _, size := range []struct {
		of    *int64
		bytes int64
	}{{&o.Kernel, 2 << 20}, {&o.Initramfs, 8 << 20}, {&o.Artifact, 1 << 20}} {
		if *size.of == 0 {
			*size.of = size.bytes
		}
	}
	if o.Spread == 0 {
		o.Spread = time.Second
	}
	if o.Patience == 0 {
		o.Patience = 90 * time.Second
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	return o
}

// Close takes the lab down.
func (s *Site) Close() error {
	var err error
	if s.Lab != nil {
		err = s.Lab.Down()
	}
	return errors.Join(err, s.containers.remove())
}

func (s *Site) open(ctx context.Context) error {
	if s.opts.Machines < 1 || s.opts.Machines > 60_000 {
		return fmt.Errorf("failed to make machines: %d are none, or more than %s has", s.opts.Machines, Segment)
	}
	logs, files := filepath.Join(s.opts.Dir, "logs"), filepath.Join(s.opts.Dir, "files")
	if err := errors.Join(os.RemoveAll(logs), os.MkdirAll(logs, 0o755), os.MkdirAll(files, 0o755)); err != nil {
		return fmt.Errorf("failed to make directories: %w", err)
	}
	sum, err := writeFiles(files, s.opts)
	if err != nil {
		return err
	}
	members := makeMembers(s.opts.Machines)
	plan := machines.Plan{
		Interface: "eth0", Service: lab.ServiceIP, Members: members,
		Loader: filepath.Join(s.opts.Dir, loaderFile), Kernel: filepath.Join(files, kernelFile),
		Initramfs: filepath.Join(files, initramfsFile), Spread: s.opts.Spread, Patience: s.opts.Patience,
	}
	s.plan = filepath.Join(s.opts.Dir, "plan.json")
	workflows := filepath.Join(s.opts.Dir, "workflows.json")
	err = errors.Join(writeJSON(s.plan, plan), writeJSON(workflows, workflowsOf(members, sum)),
		os.WriteFile(plan.Loader, binary.Files["ipxe.efi"], 0o644))
	if err != nil {
		return fmt.Errorf("failed to write what machines are told: %w", err)
	}
	programs := map[string]string{}
	for _, name := range []string{"tink-standin", "hardware-standin", "storm-machines"} {
		if programs[name], err = program.Command(ctx, name); err != nil {
			return err
		}
	}
	s.machines = programs["storm-machines"]
	options := lab.Options{
		Segment: Segment, RunDir: logs, Artifacts: files, Logf: s.opts.Logf,
		Tink: lab.Command{Path: programs["tink-standin"], Args: []string{
			"-listen", netip.AddrPortFrom(lab.TinkIP, 42113).String(), "-workflows", workflows, "-hold",
		}},
		Hardware: lab.Command{
			Path: programs["hardware-standin"], Args: []string{"-listen", lab.HardwareAddr.String()},
		},
		Without: []string{lab.RA},
		// Smee agrees to blocks of 512 bytes by default, whatever a machine asks for.
		Args: map[string][]string{lab.Smee: {"-tftp-block-size", strconv.Itoa(netboot.BlockSize)}},
	}
	for _, m := range members {
		mac, _ := net.ParseMAC(m.MAC)
		options.Machines = append(options.Machines, lab.Machine{Name: m.Name, MAC: mac, IP: m.IP, Firmware: lab.UEFI})
	}
	if err := s.prepare(&options); err != nil {
		return err
	}
	if s.Lab, err = lab.Up(ctx, options); err != nil {
		return err
	}
	if s.role, err = s.Lab.AddSegment(machinesHost); err != nil {
		return err
	}
	if s.candidate, err = s.start(ctx); err != nil {
		return err
	}
	if s.opts.Loss > 0 {
		return s.Lab.Lose(uint32(s.opts.Loss * 100))
	}
	return nil
}

// Names of the files that machines get.
const (
	loaderFile    = "ipxe.efi"
	kernelFile    = "vmlinuz-x86_64" // as Smee's script names them
	initramfsFile = "initramfs-x86_64"
	artifactFile  = "image.raw"
)

// writeFiles writes noise, the same each time, and returns the artifact's SHA-512.
func writeFiles(dir string, o Options) (sum string, err error) {
	for i, f := range []struct {
		name string
		size int64
	}{{kernelFile, o.Kernel}, {initramfsFile, o.Initramfs}, {artifactFile, o.Artifact}} {
		file, err := os.Create(filepath.Join(dir, f.name))
		if err != nil {
			return "", fmt.Errorf("failed to write what machines boot: %w", err)
		}
		hash := sha512.New()
		_, err = io.CopyN(io.MultiWriter(file, hash), rand.NewChaCha8([32]byte{byte(i + 1)}), f.size)
		if err = errors.Join(err, file.Close()); err != nil {
			return "", fmt.Errorf("failed to write what machines boot: %w", err)
		}
		sum = hex.EncodeToString(hash.Sum(nil))
	}
	return sum, nil
}

func writeJSON(path string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o644)
}

// makeMembers makes machines with addresses of their own.
func makeMembers(n int) []machines.Member {
	members := make([]machines.Member, n)
	for i := range members {
		high, low := byte((i+1)/250), byte((i+1)%250+1)
		name := fmt.Sprintf("m%05d", i+1)
		members[i] = machines.Member{
			Name: name, MAC: net.HardwareAddr{0x52, 0x54, 0x00, 0x60, high, low}.String(),
			IP: netip.AddrFrom4([4]byte{198, 18, high, low}), Workflow: "install-" + name,
		}
	}
	return members
}

// workflowsOf gives each machine a workflow: read the artifact.
func workflowsOf(members []machines.Member, sum string) map[string][]tink.Workflow {
	workflows := map[string][]tink.Workflow{}
	for _, m := range members {
		workflows[m.MAC] = []tink.Workflow{{ID: m.Workflow, Actions: []tink.Action{{
			TaskName: "os-installation", Name: "stream-image", Image: "image2disk", Timeout: 600, WorkerID: m.MAC,
			Environment: []string{
				"IMG_URL=http://" + netip.AddrPortFrom(lab.ServiceIP, 8080).String() + "/" + artifactFile,
				"IMG_SHA512=" + sum,
			},
		}}}}
	}
	return workflows
}
