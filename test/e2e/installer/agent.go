package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tinkerbell/stack/test/e2e/progress"
)

// agent runs the workflow by Tinkerbell's own agent, of which it is the container runtime.
type agent struct {
	*run
	engine *engine
	server *http.Server
	dir    string // of its program and its runtime's socket
	end    func() error
	log    reports
}

// workflow starts the agent, and waits until it asks its runtime for the action's container.
func (a *agent) workflow(ctx context.Context, watch *progress.Watch) (string, map[string]string, error) {
	if a.end == nil {
		if err := a.start(ctx, watch); err != nil {
			return "", nil, err
		}
		watch.Moved("the agent is started")
	}
	select {
	case a.action.Environment = <-a.engine.created:
	case <-ctx.Done():
		return "", nil, fmt.Errorf("the agent got no action: %w", context.Cause(ctx))
	}
	for _, variable := range a.action.Environment {
		if name, ok := strings.CutPrefix(variable, "WORKFLOW="); ok {
			a.workflowID = name
		}
	}
	data := map[string]string{"workflow": a.workflowID}
	return fmt.Sprintf("workflow %s by Tinkerbell's agent", a.workflowID), data, nil
}

// artifact is what the action's container does. The step is passed when the agent has reported the end of the action.
func (a *agent) artifact(ctx context.Context, watch *progress.Watch) (string, map[string]string, error) {
	detail, data, _, err := a.stream(ctx, watch, a.action.Environment)
	if err != nil {
		return "", nil, err
	}
	a.engine.exit(0)
	select {
	case state := <-a.log.ended:
		if state != "success" {
			return "", nil, fmt.Errorf("the agent reported the action's end as %s", state)
		}
	case <-ctx.Done():
		return "", nil, fmt.Errorf("the agent did not report the action's end: %w", context.Cause(ctx))
	}
	return detail, data, nil
}

// start downloads the agent, as HookOS pulls it, and starts it with a runtime.
func (a *agent) start(ctx context.Context, watch *progress.Watch) (err error) {
	if a.dir == "" {
		if a.dir, err = os.MkdirTemp("", "agent-"); err != nil {
			return fmt.Errorf("failed to make directory for the agent: %w", err)
		}
	}
	program, socket := filepath.Join(a.dir, "tink-agent"), filepath.Join(a.dir, "docker.sock")
	if err := a.download(ctx, watch, a.Agent, program); err != nil {
		return err
	}
	if a.server == nil {
		listener, err := net.Listen("unix", socket)
		if err != nil {
			return fmt.Errorf("failed to start container runtime: %w", err)
		}
		a.server = &http.Server{Handler: a.engine.handler(), ReadHeaderTimeout: time.Minute}
		go func() { _ = a.server.Serve(listener) }() // until close
	}
	a.log.ended = make(chan string, 1)
	a.end, err = a.Start(program, []string{
		"--id", a.WorkerID, "--grpc-server", a.Tink, "--runtime", "docker", "--docker-socket", socket,
		"--attribute-detection=false", // of hardware that is none
	}, &a.log)
	if err != nil {
		return fmt.Errorf("failed to start the agent: %w", err)
	}
	return nil
}

// download writes a program.
func (a *agent) download(ctx context.Context, watch *progress.Watch, url, path string) error {
	response, err := a.open(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return fmt.Errorf("failed to write the agent: %w", err)
	}
	n, err := io.Copy(file, watch.Reader(response.Body))
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("failed to read %s after %d bytes: %w", url, n, err)
	}
	return nil
}

func (a *agent) close() {
	if a.end != nil {
		_ = a.end() // it runs until it is ended
	}
	if a.server != nil {
		_ = a.server.Close()
	}
	a.engine.exit(1)
	if a.dir != "" {
		_ = os.RemoveAll(a.dir)
	}
}

// reports is what the agent logs. It finds the state in which an action ended, once the server has it.
type reports struct {
	mu      sync.Mutex
	pending []byte
	ended   chan string
}

func (r *reports) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending = append(r.pending, b...)
	for {
		line, rest, ok := bytes.Cut(r.pending, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		r.pending = rest
		var said struct{ Msg, State string }
		if json.Unmarshal(line, &said) == nil && said.Msg == "reported action status" && said.State != "running" {
			select {
			case r.ended <- said.State:
			default: // the first counts
			}
		}
	}
}
