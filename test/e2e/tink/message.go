// Package tink speaks Tink's WorkflowService, version 1, as in github.com/tinkerbell/tink v0.12.2, on the wire: a
// stand-in for Tink Server, which needs a Kubernetes API, and a client.
//
// Tink's own generated code is internal to its module, so the messages are written here from the field numbers of
// its internal/proto/workflow.proto. A test compares them with that file.
package tink

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// State of an action.
type State int32

// The states of an action.
const (
	Pending State = iota
	Running
	Failed
	Timeout
	Success
)

func (s State) String() string {
	names := [...]string{"pending", "running", "failed", "timeout", "success"}
	if s < 0 || int(s) >= len(names) {
		return fmt.Sprintf("state %d", int32(s))
	}
	return names[s]
}

// ContextRequest (WorkflowContextRequest) asks for the workflows of a worker.
type ContextRequest struct {
	WorkerID string
}

// Context (WorkflowContext) says that there is a workflow and how far it is.
type Context struct {
	WorkflowID         string `json:"workflow_id"`
	CurrentWorker      string `json:"current_worker,omitempty"`
	CurrentTask        string `json:"current_task,omitempty"`
	CurrentAction      string `json:"current_action,omitempty"`
	CurrentActionIndex int64  `json:"current_action_index,omitempty"`
	CurrentActionState State  `json:"current_action_state,omitempty"`
	TotalActions       int64  `json:"total_actions,omitempty"`
}

// ActionsRequest (WorkflowActionsRequest) asks for the actions of a workflow.
type ActionsRequest struct {
	WorkflowID string
}

// Actions (WorkflowActionList) are the actions of a workflow.
type Actions struct {
	List []Action
}

// Action (WorkflowAction) is one thing to do.
type Action struct {
	TaskName    string   `json:"task_name"`
	Name        string   `json:"name"`
	Image       string   `json:"image"`
	Timeout     int64    `json:"timeout"` // seconds
	Command     []string `json:"command,omitempty"`
	OnTimeout   []string `json:"on_timeout,omitempty"`
	OnFailure   []string `json:"on_failure,omitempty"`
	WorkerID    string   `json:"worker_id"`
	Volumes     []string `json:"volumes,omitempty"`
	Environment []string `json:"environment,omitempty"` // "NAME=value"
	PID         string   `json:"pid,omitempty"`
}

// ActionStatus (WorkflowActionStatus) reports on an action.
type ActionStatus struct {
	WorkflowID string
	TaskName   string
	ActionName string
	Status     State
	Seconds    int64
	Message    string
	CreatedAt  time.Time
	WorkerID   string
}

// Empty is the answer to a report.
type Empty struct{}

// message is what the codec carries.
type message interface {
	append(b []byte) []byte
	set(number protowire.Number, value field)
}

// field is a field's value as it came: a number, or bytes.
type field struct {
	number uint64
	bytes  []byte
	fault  *error // of a message in it
}

// message decodes a field that is a message.
func (f field) message(m message) {
	if err := Unmarshal(f.bytes, m); err != nil {
		*f.fault = err
	}
}

// Marshal encodes a message.
func Marshal(m message) []byte { return m.append(nil) }

// errWire is wrapped by every error of Unmarshal.
var errWire = errors.New("failed to decode message")

// Unmarshal decodes a message into m. Fields that m does not know are skipped, as protobuf wants it.
func Unmarshal(b []byte, m message) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", errWire, protowire.ParseError(n))
		}
		b = b[n:]
		var fault error
		value := field{fault: &fault}
		switch kind {
		case protowire.VarintType:
			value.number, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			value.bytes, n = protowire.ConsumeBytes(b)
			if n >= 0 && value.bytes == nil {
				value.bytes = []byte{}
			}
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return fmt.Errorf("%w: field %d: %w", errWire, number, protowire.ParseError(n))
		}
		b = b[n:]
		if m.set(number, value); fault != nil {
			return fmt.Errorf("%w: field %d: %w", errWire, number, fault)
		}
	}
	return nil
}

func appendString(b []byte, number protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
}

func appendStrings(b []byte, number protowire.Number, list []string) []byte {
	for _, s := range list {
		b = protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
	}
	return b
}

func appendInt(b []byte, number protowire.Number, i int64) []byte {
	if i == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), uint64(i))
}

func (m *ContextRequest) append(b []byte) []byte { return appendString(b, 1, m.WorkerID) }

func (m *ContextRequest) set(number protowire.Number, v field) {
	if number == 1 {
		m.WorkerID = string(v.bytes)
	}
}

func (m *Context) append(b []byte) []byte {
	b = appendString(b, 1, m.WorkflowID)
	b = appendString(b, 2, m.CurrentWorker)
	b = appendString(b, 3, m.CurrentTask)
	b = appendString(b, 4, m.CurrentAction)
	b = appendInt(b, 5, m.CurrentActionIndex)
	b = appendInt(b, 6, int64(m.CurrentActionState))
	return appendInt(b, 7, m.TotalActions)
}

func (m *Context) set(number protowire.Number, v field) {
	switch number {
	case 1:
		m.WorkflowID = string(v.bytes)
	case 2:
		m.CurrentWorker = string(v.bytes)
	case 3:
		m.CurrentTask = string(v.bytes)
	case 4:
		m.CurrentAction = string(v.bytes)
	case 5:
		m.CurrentActionIndex = int64(v.number)
	case 6:
		m.CurrentActionState = State(v.number)
	case 7:
		m.TotalActions = int64(v.number)
	}
}

func (m *ActionsRequest) append(b []byte) []byte { return appendString(b, 1, m.WorkflowID) }

func (m *ActionsRequest) set(number protowire.Number, v field) {
	if number == 1 {
		m.WorkflowID = string(v.bytes)
	}
}

func (m *Actions) append(b []byte) []byte {
	for i := range m.List {
		b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), m.List[i].append(nil))
	}
	return b
}

func (m *Actions) set(number protowire.Number, v field) {
	if number == 1 {
		var action Action
		v.message(&action)
		m.List = append(m.List, action)
	}
}

func (m *Action) append(b []byte) []byte {
	b = appendString(b, 1, m.TaskName)
	b = appendString(b, 2, m.Name)
	b = appendString(b, 3, m.Image)
	b = appendInt(b, 4, m.Timeout)
	b = appendStrings(b, 5, m.Command)
	b = appendStrings(b, 6, m.OnTimeout)
	b = appendStrings(b, 7, m.OnFailure)
	b = appendString(b, 8, m.WorkerID)
	b = appendStrings(b, 9, m.Volumes)
	b = appendStrings(b, 10, m.Environment)
	return appendString(b, 11, m.PID)
}

func (m *Action) set(number protowire.Number, v field) {
	switch number {
	case 1:
		m.TaskName = string(v.bytes)
	case 2:
		m.Name = string(v.bytes)
	case 3:
		m.Image = string(v.bytes)
	case 4:
		m.Timeout = int64(v.number)
	case 5:
		m.Command = append(m.Command, string(v.bytes))
	case 6:
		m.OnTimeout = append(m.OnTimeout, string(v.bytes))
	case 7:
		m.OnFailure = append(m.OnFailure, string(v.bytes))
	case 8:
		m.WorkerID = string(v.bytes)
	case 9:
		m.Volumes = append(m.Volumes, string(v.bytes))
	case 10:
		m.Environment = append(m.Environment, string(v.bytes))
	case 11:
		m.PID = string(v.bytes)
	}
}

func (m *ActionStatus) append(b []byte) []byte {
	b = appendString(b, 1, m.WorkflowID)
	b = appendString(b, 2, m.TaskName)
	b = appendString(b, 3, m.ActionName)
	b = appendInt(b, 4, int64(m.Status))
	b = appendInt(b, 5, m.Seconds)
	b = appendString(b, 6, m.Message)
	if !m.CreatedAt.IsZero() {
		at := timestamp{m.CreatedAt.Unix(), int64(m.CreatedAt.Nanosecond())}
		b = protowire.AppendBytes(protowire.AppendTag(b, 7, protowire.BytesType), at.append(nil))
	}
	return appendString(b, 8, m.WorkerID)
}

func (m *ActionStatus) set(number protowire.Number, v field) {
	switch number {
	case 1:
		m.WorkflowID = string(v.bytes)
	case 2:
		m.TaskName = string(v.bytes)
	case 3:
		m.ActionName = string(v.bytes)
	case 4:
		m.Status = State(v.number)
	case 5:
		m.Seconds = int64(v.number)
	case 6:
		m.Message = string(v.bytes)
	case 7:
		var at timestamp
		v.message(&at)
		m.CreatedAt = time.Unix(at.seconds, at.nanos).UTC()
	case 8:
		m.WorkerID = string(v.bytes)
	}
}

// timestamp is google.protobuf.Timestamp.
type timestamp struct{ seconds, nanos int64 }

func (m *timestamp) append(b []byte) []byte {
	return appendInt(appendInt(b, 1, m.seconds), 2, m.nanos)
}

func (m *timestamp) set(number protowire.Number, v field) {
	switch number {
	case 1:
		m.seconds = int64(v.number)
	case 2:
		m.nanos = int64(v.number)
	}
}

func (*Empty) append(b []byte) []byte { return b }

func (*Empty) set(protowire.Number, field) {}
