package lab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// stateDir holds a directory per lab: a lock that the owner or the janitor holds, and the pids that
// are needed to remove the lab.
const stateDir = "/run/stack-lab"

// Files in a lab's directory.
const (
	lockFile    = "lock"
	mountsDir   = "netns"   // the network namespaces
	nodeFile    = "node"    // pid and start time of the node's pid 1
	janitorFile = "janitor" // pid and start time, for "lab down"
	runDirFile  = "rundir"
	keptFile    = "kept" // there is one once the lab is detached
)

const idBytes = 3

// lifeline ties a lab to the life of its owner. The janitor is a process of its own session that waits for the
// owner's end of a pipe to close, whatever closed it, and then removes the lab. The node's pid 1 waits in the
// same way for the janitor's end of another pipe: when it goes, the kernel kills every process of the node.
type lifeline struct {
	lock    *os.File
	owner   *os.File // closed: the lab goes
	nodeEnd *os.File // for the node's pid 1
	janitor *exec.Cmd
	log     string
	once    sync.Once
	err     error
}

// claim gives the lab its name and its janitor.
func (l *Lab) claim() error {
	unlock, err := lockState()
	if err != nil {
		return err
	}
	defer unlock()
	random := make([]byte, idBytes)
	if _, err := rand.Read(random); err != nil {
		return err
	}
	l.id = hex.EncodeToString(random)
	l.dir = filepath.Join(stateDir, l.id)
	if l.opts.RunDir == "" {
		l.opts.RunDir = filepath.Join(l.bin.repo, "build", "lab", l.id)
	}
	for _, dir := range []string{l.dir, filepath.Join(l.dir, "root"), filepath.Join(l.dir, mountsDir), l.opts.RunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("failed to make directory: %w", err)
		}
	}
	if l.opts.RunDir, err = filepath.Abs(l.opts.RunDir); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(l.dir, runDirFile), []byte(l.opts.RunDir), 0o644); err != nil {
		return err
	}
	lock, err := lockLab(l.dir)
	if err != nil {
		return err
	}
	keep := &lifeline{lock: lock, log: l.LogPath("janitor")}
	if err := keep.start(l.id, l.dir); err != nil {
		return errors.Join(err, remove(l.id))
	}
	l.keep = keep
	return nil
}

func (k *lifeline) start(id, dir string) error {
	ownerR, ownerW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = ownerR.Close() }()
	nodeR, nodeW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = nodeW.Close() }()
	log, err := os.Create(k.log)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	if k.janitor, err = helper("janitor", id); err != nil {
		return err
	}
	k.janitor.Stdout, k.janitor.Stderr = log, log
	k.janitor.ExtraFiles = []*os.File{ownerR, k.lock, nodeW}
	k.janitor.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // Ctrl-C is for the owner
	if err := k.janitor.Start(); err != nil {
		return fmt.Errorf("failed to start janitor: %w", err)
	}
	k.owner, k.nodeEnd = ownerW, nodeR
	return writePid(filepath.Join(dir, janitorFile), k.janitor.Process.Pid)
}

// end has the janitor remove the lab, and waits for it.
func (k *lifeline) end() error {
	k.once.Do(func() {
		_ = k.owner.Close()
		err := k.janitor.Wait()
		_ = k.nodeEnd.Close()
		_ = k.lock.Close()
		if err != nil {
			said, _ := os.ReadFile(k.log)
			k.err = fmt.Errorf("failed to take lab down: %w: %s", err, strings.TrimSpace(string(said)))
		}
	})
	return k.err
}

// detach has the janitor stay when the owner goes.
func (k *lifeline) detach(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, keptFile), nil, 0o644); err != nil {
		return fmt.Errorf("failed to detach lab: %w", err)
	}
	if _, err := k.owner.Write([]byte("stay")); err != nil {
		return fmt.Errorf("failed to detach lab: %w", err)
	}
	_ = k.owner.Close()
	_ = k.nodeEnd.Close()
	return k.lock.Close()
}

// janitor waits until the lab shall go, and removes it.
func janitor(args []string) error {
	owner, lock, node := os.NewFile(3, "owner"), os.NewFile(4, "lock"), os.NewFile(5, "node")
	for _, file := range []*os.File{owner, lock, node} {
		unix.CloseOnExec(int(file.Fd()))
	}
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	gone := make(chan bool, 1)
	go func() {
		word, _ := io.ReadAll(owner)
		gone <- string(word) == "stay"
	}()
	select {
	case <-end:
	case stay := <-gone:
		if stay {
			<-end
		}
	}
	_ = node.Close()
	return remove(args[0])
}
