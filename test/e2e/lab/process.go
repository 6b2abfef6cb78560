package lab

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process says which program to run, where and with which rights. Every process of a lab is in the node's pid
// namespace (its /proc/1 is the node) and in a mount namespace of its own, in which /etc/resolv.conf names the lab's
// DNS.
type Process struct {
	Name string // of the process and its log
	Role string // network namespace
	Path string
	Args []string // without argv[0]
	Env  []string // the whole environment; nil: PATH and HOME only
	Dir  string   // working directory
	// Stdout gets a copy of what goes to the log. It ends with the owner: leave it nil where the lab is detached.
	Stdout io.Writer
	Stdin  io.Reader
	// Security confines the process as a pod's security context does. Nil: root, on the host's root filesystem.
	Security *Security
	// Tmpfs hides directories of the host's root filesystem under empty ones, for programs that write there.
	Tmpfs []string
	// Files are open in the process, as file descriptors 3, 4, ...
	Files []*os.File
	// Watch reports the end of the process on [Lab.Failed].
	Watch bool

	argv0 string // default: Path
}

// Security is what a chart would give a container: an image from scratch that holds the program alone, read-only,
// no_new_privs, a user and a set of capabilities.
type Security struct {
	UID          int
	Capabilities []int // unix.CAP_NET_ADMIN, ...; the bounding set, and for uid 0 the effective one
	Ambient      bool  // raise Capabilities in the ambient set too, which is how they reach another user
	// Mounts binds files and directories of the host read-only: path inside to path outside.
	Mounts map[string]string
	// Cgroup is the directory of a cgroup, v1 or v2, that the process enters and sees as its container; empty: none.
	Cgroup string
	// Shared binds directories of the host that may be written to, as an emptyDir is: path inside to path outside.
	Shared map[string]string
}

// Proc is a process of the lab.
type Proc struct {
	name     string
	log      string
	cmd      *exec.Cmd
	done     chan struct{}
	err      error
	expected chan struct{} // closed before it is made to end
}

// Name is the process's name.
func (p *Proc) Name() string { return p.name }

// Pid is the process's id as the caller sees it.
func (p *Proc) Pid() int { return p.cmd.Process.Pid }

// LogPath is the file with the process's output.
func (p *Proc) LogPath() string { return p.log }

// Done is closed when the process has ended.
func (p *Proc) Done() <-chan struct{} { return p.done }

// Wait waits for the end of the process. The error is nil when it ended with status 0.
func (p *Proc) Wait() error {
	<-p.done
	return p.err
}

// Signal sends a signal.
func (p *Proc) Signal(signal syscall.Signal) error { return p.cmd.Process.Signal(signal) }

// end ends the process with a signal and waits, at most for the time given, then kills it.
func (p *Proc) end(signal syscall.Signal, timeout time.Duration) error {
	select {
	case <-p.done:
		return nil
	case <-p.expected:
	default:
		close(p.expected)
	}
	if err := p.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("failed to end %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(timeout):
	}
	_ = p.Signal(syscall.SIGKILL)
	<-p.done
	return fmt.Errorf("failed to end %s: it ignored %s for %s", p.name, signal, timeout)
}

// LogPath is the file with a process's output, also before it starts. Each start adds to it.
func (l *Lab) LogPath(name string) string { return filepath.Join(l.opts.RunDir, name+".log") }

// Proc returns a process by its name; nil when it was never started.
func (l *Lab) Proc(name string) *Proc {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.procs[name]
}

// Kill ends a process by SIGKILL, as a crash or the kernel's memory killer would.
func (l *Lab) Kill(name string) error { return l.endByName(name, syscall.SIGKILL) }

// Stop ends a process by SIGTERM, as a kubelet does; an error tells when it needed more than the 30 s that a
// kubelet gives.
func (l *Lab) Stop(name string) error { return l.endByName(name, syscall.SIGTERM) }

func (l *Lab) endByName(name string, signal syscall.Signal) error {
	proc := l.Proc(name)
	if proc == nil {
		return fmt.Errorf("failed to end %s: it is not running", name)
	}
	return proc.end(signal, 30*time.Second)
}

// Start starts a process in the lab. It ends with the lab at the latest.
func (l *Lab) Start(p Process) (*Proc, error) {
	proc, err := l.start(p)
	if err != nil {
		return nil, fmt.Errorf("failed to start %s: %w", p.Name, err)
	}
	return proc, nil
}

// Run starts a process and waits for its end; when ctx is done first, it kills it. The error quotes the end of
// the log.
func (l *Lab) Run(ctx context.Context, p Process) error {
	proc, err := l.Start(p)
	if err != nil {
		return err
	}
	select {
	case <-proc.done:
		if proc.err != nil {
			return fmt.Errorf("%s failed: %w: %s", p.Name, proc.err, logTail(proc.log))
		}
		return nil
	case <-ctx.Done():
		_ = proc.end(syscall.SIGKILL, time.Minute)
		return fmt.Errorf("%s did not end: %w", p.Name, context.Cause(ctx))
	}
}

func (l *Lab) start(p Process) (*Proc, error) {
	if l.node == nil {
		return nil, errors.New("the node is not running")
	}
	select {
	case <-l.node.done:
		return nil, fmt.Errorf("the node has ended: %s", logTail(l.node.log))
	default:
	}
	path, err := exec.LookPath(p.Path)
	if err != nil {
		return nil, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return nil, err
	}
	if p.Env == nil {
		p.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}
	}
	spec, err := json.Marshal(sandbox{
		Path: path, Args: append([]string{cmp.Or(p.argv0, path)}, p.Args...), Env: p.Env,
		Dir: p.Dir, Tmpfs: p.Tmpfs, Security: p.Security,
		Resolv: l.resolvPath(), Root: filepath.Join(l.dir, "root"),
	})
	if err != nil {
		return nil, err
	}
	cmd, err := helper("exec", string(spec))
	if err != nil {
		return nil, err
	}
	// A session of its own: Ctrl-C is for the owner, which then takes the lab down.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS}
	cmd.Stdin, cmd.ExtraFiles = p.Stdin, p.Files
	return l.launch(cmd, p, func() error {
		return l.withPidNamespace(func(fd int) error {
			if err := unix.Setns(fd, unix.CLONE_NEWPID); err != nil {
				return fmt.Errorf("failed to enter node's pid namespace: %w", err)
			}
			return cmd.Start()
		})
	})
}

// launch runs start inside the role's namespace with the log in place, and follows the process.
func (l *Lab) launch(cmd *exec.Cmd, p Process, start func() error) (*Proc, error) {
	proc := &Proc{
		name: p.Name, log: l.LogPath(p.Name), cmd: cmd,
		done: make(chan struct{}), expected: make(chan struct{}),
	}
	log, err := os.OpenFile(proc.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	var logCopy *os.File
	if p.Stdout != nil {
		// exec.Cmd copies on a goroutine; the descriptor has to live as long as that.
		if logCopy, err = os.OpenFile(proc.log, os.O_WRONLY|os.O_APPEND, 0); err != nil {
			return nil, err
		}
		both := io.MultiWriter(logCopy, p.Stdout)
		cmd.Stdout, cmd.Stderr = both, both
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return nil, errors.New("the lab is down")
	}
	if old := l.procs[p.Name]; old != nil {
		select {
		case <-old.done:
		default:
			return nil, errors.New("it is running already")
		}
	}
	if err := l.Do(p.Role, start); err != nil {
		return nil, err
	}
	l.procs[p.Name] = proc
	go func() {
		proc.err = cmd.Wait()
		if logCopy != nil {
			_ = logCopy.Close()
		}
		close(proc.done)
		if p.Watch {
			l.report(proc)
		}
	}()
	return proc, nil
}

// report tells the unexpected end of a process.
func (l *Lab) report(proc *Proc) {
	select {
	case <-proc.expected:
		return
	default:
	}
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		return
	}
	err := fmt.Errorf("%s ended unexpectedly (%s): %s", proc.name, proc.cmd.ProcessState, logTail(proc.log))
	select {
	case l.failed <- err:
	default: // sixteen others say enough
	}
}

// logTail is the end of a log, for an error message.
func logTail(path string) string {
	const most = 1500
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	if len(text) == 0 {
		return "its log is empty (" + path + ")"
	}
	if len(text) > most {
		text = text[len(text)-most:]
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			text = text[i+1:]
		}
	}
	return "log " + path + " ends with:\n" + string(text)
}

// Tail calls f with each line of a file, as it is written, until f returns false or ctx is done. The file may not
// exist yet. The error is nil when f ended it.
func Tail(ctx context.Context, path string, f func(line string) (more bool)) error {
	var (
		file    *os.File
		pending strings.Builder
		buffer  = make([]byte, 16<<10)
	)
	defer func() {
		if file != nil {
			_ = file.Close()
		}
	}()
	for {
		if file == nil {
			opened, err := os.Open(path)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("failed to follow log: %w", err)
			}
			if err == nil {
				file = opened
			}
		}
		n := 0
		if file != nil {
			var err error
			if n, err = file.Read(buffer); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("failed to follow log: %w", err)
			}
			pending.Write(buffer[:n])
		}
		for {
			line, rest, ok := strings.Cut(pending.String(), "\n")
			if !ok {
				break
			}
			pending.Reset()
			pending.WriteString(rest)
			if !f(line) {
				return nil
			}
		}
		if n > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
