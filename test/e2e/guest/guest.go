// Package guest runs programs in a virtual machine that has a kernel of Debian's and nothing else: they are in its
// initramfs, and what they print comes by a serial port. QEMU emulates the processor, so that neither the rights nor
// the hardware of a hypervisor are needed.
package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/test/e2e/kernel"
	"github.com/tinkerbell/stack/test/e2e/process"
	"github.com/tinkerbell/stack/test/e2e/program"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// Quiet is how long neither the kernel nor a program of a guest may print anything new.
const Quiet = 2 * time.Minute

// Command is a program that runs in a guest.
type Command struct {
	Args   []string // the first is its path in the guest
	Env    []string // besides PATH, HOME, TMPDIR and first.Guest
	Memory int64    // bytes of its cgroup (v2), which it finds at /sys/fs/cgroup as a container does; 0: no limit
}

// Machine is a guest: its commands run one after the other, then it switches itself off.
type Machine struct {
	Kernel   kernel.Kernel
	Arch     string            // as Go calls it; default amd64
	Programs map[string]string // files of this machine, by their names in the guest's /bin
	Root     string            // directory whose files the guest has, too, at the same paths; empty: none
	Commands []Command
	MiB      int // of memory; default 512
	// Shift says how fast the guest is: of its time, an instruction takes 2^Shift ns; 0 is the default, 3.
	Shift int
}

// End begins a line that a guest prints when a command has ended; its exit status follows.
const End = "@@end "

// Modules are what commands need to report, in the package of a kernel. Those of [kernel.Package] follow.
var Modules = []string{"virtio_pci", "virtio_console"}

// emulators are QEMU's programs, the packages that have them, the machine that they emulate, and the console of its
// kernel.
var emulators = map[string]struct {
	program, debian, console string
	args                     []string
}{
	"amd64": {"qemu-system-x86_64", "qemu-system-x86", "ttyS0", []string{
		"-M", "pc", "-cpu", "qemu64,+rdrand", // without it the kernel has no random numbers for the first minutes
	}},
	"arm64": {"qemu-system-aarch64", "qemu-system-arm", "ttyAMA0", []string{"-M", "virt", "-cpu", "max,pauth-impdef=on"}},
}

// Missing says which package of Debian a guest of an architecture needs and this machine has not; empty: none.
func Missing(arch string) string {
	if _, err := exec.LookPath(emulators[arch].program); err != nil {
		return emulators[arch].debian
	}
	return ""
}

// Run boots a machine and passes on, line by line, what its commands print. Its files and the kernel's console are in
// dir. The statuses are those of the commands; the error is the machine's.
func Run(ctx context.Context, m Machine, dir string, line func(string)) (statuses []int, err error) {
	if m.Arch == "" {
		m.Arch = "amd64"
	}
	if m.MiB == 0 {
		m.MiB = 512
	}
	if m.Shift == 0 {
		m.Shift = 3
	}
	initramfs := filepath.Join(dir, "initramfs")
	if err := pack(ctx, m, dir, initramfs); err != nil {
		return nil, err
	}
	console := filepath.Join(dir, "console.log")
	emulator := emulators[m.Arch]
	var started atomic.Pointer[process.Process]
	ctx, watch := progress.Begin(ctx, progress.Patience{
		Quiet: Quiet, Signs: []func() string{process.LastLine("the kernel", console)},
		Waited: func() time.Duration {
			if running := started.Load(); running != nil {
				return running.Starved()
			}
			return 0
		},
	})
	defer watch.End()
	heard := &lines{line: func(text string) {
		watch.Moved("a program printed: " + text)
		var status int
		if said, ok := strings.CutPrefix(text, End); ok && json.Unmarshal([]byte(said), &status) == nil {
			statuses = append(statuses, status)
			return
		}
		line(text)
	}}
	args := slices.Concat([]string{
		"-accel", "tcg", "-smp", "1", "-m", fmt.Sprint(m.MiB), "-nodefaults", "-no-reboot", "-display", "none",
		// A guest's time is that of the instructions that it executes, and it sleeps in no time: time-outs in it do not
		// depend on what else this machine has to do.
		"-icount", fmt.Sprintf("shift=%d,sleep=off", m.Shift), "-rtc", "clock=vm",
	},
		emulator.args, []string{
			"-kernel", m.Kernel.Image, "-initrd", initramfs,
			// A machine that dies ends, instead of waiting.
			"-append", "console=" + emulator.console + " loglevel=4 panic=-1 oops=panic mitigations=off",
			"-serial", "file:" + console,
			"-chardev", "stdio,id=report,signal=off", "-device", "virtio-serial-pci", "-device", "virtconsole,chardev=report",
		})
	cmd := exec.Command(emulator.program, args...)
	cmd.Stdout = heard
	running, err := process.Start(ctx, cmd, process.Options{})
	if err != nil {
		return nil, err
	}
	defer running.Kill()
	started.Store(running)
	select {
	case <-running.Ended():
		err = running.Wait()
	case <-ctx.Done():
		running.Kill()
		err = context.Cause(ctx)
	}
	heard.flush()
	if err == nil && len(statuses) < len(m.Commands) {
		err = fmt.Errorf("it ended in command %d of %d", len(statuses)+1, len(m.Commands))
	}
	if err != nil {
		said, _ := os.ReadFile(console)
		return statuses, fmt.Errorf("failed to run guest with kernel %s: %w\n%s%s", m.Kernel.Version, err, running.Said(),
			said[max(0, len(said)-4000):])
	}
	return statuses, nil
}

// pack writes the initramfs.
func pack(ctx context.Context, m Machine, dir, path string) error {
	repo, err := program.Repo()
	if err != nil {
		return err
	}
	module := filepath.Join(repo, "test", "e2e")
	bin := filepath.Join(repo, "build", "bin", "guest-"+m.Arch)
	if err := program.For(ctx, m.Arch, module, bin, "./guest/init"); err != nil {
		return err
	}
	text, err := json.Marshal(m.Commands)
	if err != nil {
		return err
	}
	commands := filepath.Join(dir, "commands.json")
	if err := os.WriteFile(commands, text, 0o644); err != nil {
		return fmt.Errorf("failed to write commands: %w", err)
	}
	files := []kernel.File{{Name: "commands.json", From: commands, Mode: 0o644}}
	for _, name := range slices.Sorted(maps.Keys(m.Programs)) {
		files = append(files, kernel.File{Name: "bin/" + name, From: m.Programs[name], Mode: 0o755})
	}
	more, err := rooted(m.Root)
	if err != nil {
		return fmt.Errorf("failed to list the guest's files: %w", err)
	}
	files = append(files, more...)
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("failed to make initramfs: %w", err)
	}
	return errors.Join(kernel.WriteInitramfs(file, filepath.Join(bin, "init"), m.Kernel.Modules, files...), file.Close())
}

// rooted are the files of a directory, all of which a guest may run.
func rooted(root string) (files []kernel.File, err error) {
	if root == "" {
		return nil, nil
	}
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			files = append(files, kernel.File{Name: strings.TrimPrefix(path, root+"/"), From: path, Mode: 0o755})
		}
		return err
	})
	return files, err
}

// lines passes on whole lines.
type lines struct {
	mu      sync.Mutex
	pending []byte
	line    func(string)
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(l.pending, b...)
	for {
		line, rest, ok := bytes.Cut(l.pending, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		l.line(strings.TrimRight(string(line), "\r"))
		l.pending = rest
	}
}

func (l *lines) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) > 0 {
		l.line(string(l.pending))
		l.pending = nil
	}
}
