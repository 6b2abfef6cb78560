package machines

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/tink"
)

// log sends a line as RFC 3164 has it.
func (m *machine) log(ctx context.Context, text string) error {
	conn, err := m.dial(ctx, "udp", m.config.Syslog)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	line := fmt.Sprintf("<133>%s installer[1]: %s %s", time.Now().UTC().Format(time.Stamp), m.Name, text)
	if _, err := conn.Write([]byte(line)); err != nil {
		return fmt.Errorf("failed to send syslog line: %w", err)
	}
	return nil
}

// metadata reads what Hegel knows of the machine, by its address alone.
func (m *machine) metadata(ctx context.Context) error {
	for i, word := range []struct{ name, own string }{
		{"instance-id", m.MAC}, {"hostname", m.Name}, {"public-ipv4", m.IP.String()},
	} {
		text, err := m.get(ctx, m.config.Metadata+"/2009-04-04/meta-data/"+word.name)
		if err != nil {
			return err
		}
		if err := own(word.name, text, word.own); err != nil {
			return err
		}
		m.progress.at(int64(i + 1))
	}
	return m.log(ctx, "has its metadata")
}

// workflow opens the stream of workflows, which stays open, and asks for the actions of the one that comes.
func (m *machine) workflow(ctx context.Context) error {
	m.leave()
	client, err := m.dialTink()
	if err != nil {
		return err
	}
	m.tink = client
	var hold context.Context
	hold, m.hold = context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, m.hold) // while the first answer is waited for
	defer stop()
	m.stream = make(chan error, 1)
	stream, err := client.Watch(hold, m.config.WorkerID)
	if err != nil {
		m.stream <- err
		return err
	}
	first, err := stream.Next()
	if err != nil {
		m.stream <- err
		return err
	}
	ended := m.stream
	go func() {
		_, err := stream.Next()
		ended <- errors.Join(errors.New("the stream has ended"), err)
	}()
	m.progress.at(1)
	if err := own("workflow", first.WorkflowID, m.Workflow); err != nil {
		return err
	}
	actions, err := client.Actions(ctx, first.WorkflowID)
	if err != nil {
		return err
	}
	if len(actions) == 0 {
		return fmt.Errorf("workflow %s has no action", first.WorkflowID)
	}
	m.work = actions[0]
	if err := own("action's worker", m.work.WorkerID, m.MAC); err != nil {
		return err
	}
	if !stop() {
		return errors.New("the stream has ended")
	}
	return m.tell(ctx, tink.Running)
}

func (m *machine) tell(ctx context.Context, state tink.State) error {
	return m.tink.Report(ctx, tink.ActionStatus{
		WorkflowID: m.Workflow, TaskName: m.work.TaskName, ActionName: m.work.Name, WorkerID: m.work.WorkerID,
		Status: state, Message: "by a machine of the storm",
	})
}

// artifact reads the image that the workflow names and compares its SHA-512.
func (m *machine) artifact(ctx context.Context) error {
	values := map[string]string{}
	for _, variable := range m.work.Environment {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = value
	}
	hash := sha512.New()
	err := m.readFile(ctx, values["IMG_URL"], func(piece []byte) error {
		_, err := hash.Write(piece)
		return err
	})
	if err != nil {
		return err
	}
	return own("image's SHA-512", hex.EncodeToString(hash.Sum(nil)), values["IMG_SHA512"])
}

// report tells that the work is done. The stream has to be open still; a worker whose stream has ended opens it anew.
func (m *machine) report(ctx context.Context) error {
	select {
	case err := <-m.stream:
		m.stream <- err
		m.retries["stream"]++
		if err := m.workflow(ctx); err != nil {
			return err
		}
	default:
	}
	if err := m.tell(ctx, tink.Success); err != nil {
		return err
	}
	return m.log(ctx, "ends")
}
