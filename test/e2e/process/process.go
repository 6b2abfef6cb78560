// Package process starts the programs of benches and tests, waits until they do their job, ends them, and reads their
// costs from /proc.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/progress"
)

// Quiet is how long a program that starts may print nothing new before it is given up.
const Quiet = 30 * time.Second

// Options say how a program starts.
type Options struct {
	// Name of the program in errors. The default is that of its file.
	Name string
	// Enter changes the thread from which the program starts. The program inherits what it changed, such as the network
	// namespace ([network.Into]).
	Enter func() error
	// Log is a file to which the program's output is added. By default [Process.Said] alone has it.
	Log string
	// Ready is asked until it returns nil, such as [Listens]. By default a program is ready as soon as it has started.
	Ready func(ctx context.Context) error
	// Realtime gives the program real-time priority, as [Realtime] does, before its first instruction.
	Realtime bool
}

// Process is a program that runs, in a process group of its own, which ends with it. It ends with this process at the
// latest. Nil is no process, which costs nothing.
type Process struct {
	name  string
	cmd   *exec.Cmd
	log   *os.File
	ended chan struct{}
	err   error  // how it ended; to be read once ended is closed
	said  string // likewise

	account account // see [Process.Account]
}

// Start starts a command and waits until it is ready. What it prints goes to the log, unless the command has a writer
// for it. ctx ends the wait, and not the process.
func Start(ctx context.Context, cmd *exec.Cmd, o Options) (*Process, error) {
	o.Name = cmp.Or(o.Name, filepath.Base(cmd.Path))
	fail := func(err error) error { return fmt.Errorf("failed to start %s: %w", o.Name, err) }
	log, err := openLog(o.Log)
	if err != nil {
		return nil, fail(err)
	}
	if cmd.Stdout == nil {
		cmd.Stdout = log
	}
	if cmd.Stderr == nil {
		cmd.Stderr = log
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Pdeathsig = true, syscall.SIGKILL
	p := &Process{name: o.Name, cmd: cmd, log: log, ended: make(chan struct{})}
	started := make(chan error)
	go p.run(o, started)
	if err := <-started; err != nil {
		return nil, fail(errors.Join(err, log.Close()))
	}
	if err := p.wait(ctx, o.Ready); err != nil {
		p.Kill()
		return nil, fail(fmt.Errorf("%w\n%s", err, p.Said()))
	}
	return p, nil
}

// openLog opens the file of that name, or one that nobody else sees.
func openLog(path string) (*os.File, error) {
	if path != "" {
		return os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	}
	file, err := os.CreateTemp("", "log-")
	if err != nil {
		return nil, err
	}
	return file, os.Remove(file.Name())
}

// run starts the process and waits for its end, all on one thread: for Pdeathsig that thread is the parent, and has to
// live as long as the process. It is never unlocked, so that it ends with the goroutine, whatever changed it.
func (p *Process) run(o Options, started chan<- error) {
	runtime.LockOSThread()
	err := error(nil)
	if o.Enter != nil {
		err = o.Enter()
	}
	if err == nil && o.Realtime {
		err = unix.SchedSetAttr(0, &realtime, 0)
	}
	if err == nil {
		err = p.cmd.Start()
	}
	started <- err
	if err != nil {
		return
	}
	p.err = p.cmd.Wait()
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // the rest of its group, if there is one
	p.said = end(p.log)
	_ = p.log.Close()
	close(p.ended)
}

// wait waits until the process is ready. Its log is a sign of progress.
func (p *Process) wait(ctx context.Context, ready func(context.Context) error) error {
	if ready == nil {
		return nil
	}
	patience := progress.Patience{
		Quiet: Quiet, Signs: []func() string{func() string { return lastLine(p.name, p.Said()) }}, Waited: p.Starved,
	}
	return progress.Until(ctx, patience, 10*time.Millisecond, func(ctx context.Context) error {
		select {
		case <-p.ended:
			return progress.Final(fmt.Errorf("it ended: %w", p.fault()))
		default:
			return ready(ctx)
		}
	})
}

// fault is how an ended process failed.
func (p *Process) fault() error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// Listens is ready when addr takes TCP connections.
func Listens(addr string) func(context.Context) error {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// Answers is ready when a GET of the URL has the status 200.
func Answers(url string) func(context.Context) error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return errors.Join(errors.New(response.Status), response.Body.Close())
		}
		return response.Body.Close()
	}
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Signal sends a signal to the process alone.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Wait waits for the end. The error is nil if the process ended with status 0.
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Kill ends the process and its children at once.
func (p *Process) Kill() {
	if p == nil {
		return
	}
	select {
	case <-p.ended:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may just have ended
		<-p.ended
		p.awaitChildren()
	}
	p.account.close()
}

// awaitChildren waits a second at most for the processes that a killed one began: on a busy machine nginx's workers
// still have its listeners when nginx itself has ended.
func (p *Process) awaitChildren() {
	for begin := time.Now(); time.Since(begin) < time.Second; time.Sleep(time.Millisecond) {
		if syscall.Kill(-p.cmd.Process.Pid, 0) != nil {
			return
		}
	}
}

// End asks the process to end by SIGTERM, and kills it if it is still there after a time. The error is nil if it ended
// with status 0.
func (p *Process) End(within time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("failed to end %s: %w", p.name, err)
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.ended:
		return p.err
	case <-timer.C:
		p.Kill()
		return fmt.Errorf("failed to end %s: it was still there %s after SIGTERM", p.name, within)
	}
}

// Said is the end of what the process has printed.
func (p *Process) Said() string {
	select {
	case <-p.ended:
		return p.said
	default:
		return end(p.log)
	}
}

// longest is how many bytes of a file its end has.
const longest = 8000

// end is the end of a file.
func end(file *os.File) string {
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	text := make([]byte, min(longest, info.Size()))
	n, _ := file.ReadAt(text, info.Size()-int64(len(text))) // at the end it is io.EOF
	return string(text[:n])
}

// Find is the path of a program that Debian puts where users' PATH does not lead.
func Find(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			return path, err
		}
	}
	return exec.LookPath(name)
}
