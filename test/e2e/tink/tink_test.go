package tink_test

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tinkerbell/stack/test/e2e/tink"
)

var action = tink.Action{
	TaskName: "install", Name: "stream", Image: "image2disk", Timeout: 60,
	Command: []string{"a", ""}, OnTimeout: []string{"b"}, OnFailure: []string{"c", "d"}, WorkerID: "w",
	Volumes: []string{"/dev:/dev"}, Environment: []string{"IMG_URL=http://192.0.2.2/x", "Y="}, PID: "host",
}

var report = tink.ActionStatus{
	WorkflowID: "f", TaskName: "install", ActionName: "stream", Status: tink.Success, Seconds: 3, Message: "done",
	CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), WorkerID: "w",
}

var workflow = tink.Context{
	WorkflowID: "f", CurrentWorker: "w", CurrentTask: "t", CurrentAction: "a", CurrentActionIndex: -1,
	CurrentActionState: tink.Failed, TotalActions: 1 << 40,
}

func TestRoundTrip(t *testing.T) {
	var gotContext tink.Context
	if err := tink.Unmarshal(tink.Marshal(&workflow), &gotContext); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(workflow, gotContext); diff != "" {
		t.Error(diff)
	}
	var gotActions tink.Actions
	sent := tink.Actions{List: []tink.Action{action, {Name: "second"}}}
	if err := tink.Unmarshal(tink.Marshal(&sent), &gotActions); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sent, gotActions); diff != "" {
		t.Error(diff)
	}
	var gotReport tink.ActionStatus
	if err := tink.Unmarshal(tink.Marshal(&report), &gotReport); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(report, gotReport); diff != "" {
		t.Error(diff)
	}
}

// TestFieldNumbers compares the numbers with those of Tink's own file, where Go has the module.
func TestFieldNumbers(t *testing.T) {
	where, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/tinkerbell/tink").Output()
	if err != nil || len(bytes.TrimSpace(where)) == 0 {
		t.Skip("needs github.com/tinkerbell/tink in the module cache (go mod download github.com/tinkerbell/tink)")
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(where)), "internal/proto/workflow.proto"))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		message string
		encoded []byte // every field set
		fields  []string
	}{
		{"WorkflowContextRequest", tink.Marshal(&tink.ContextRequest{WorkerID: "w"}), []string{"worker_id"}},
		{"WorkflowContext", tink.Marshal(&workflow), []string{
			"workflow_id", "current_worker", "current_task", "current_action", "current_action_index",
			"current_action_state", "total_number_of_actions",
		}},
		{"WorkflowActionsRequest", tink.Marshal(&tink.ActionsRequest{WorkflowID: "f"}), []string{"workflow_id"}},
		{"WorkflowActionList", tink.Marshal(&tink.Actions{List: []tink.Action{action}}), []string{"action_list"}},
		{"WorkflowAction", actionBytes(t), []string{
			"task_name", "name", "image", "timeout", "command", "on_timeout", "on_failure", "worker_id", "volumes",
			"environment", "pid",
		}},
		{"WorkflowActionStatus", tink.Marshal(&report), []string{
			"workflow_id", "task_name", "action_name", "action_status", "seconds", "message", "created_at", "worker_id",
		}},
	} {
		var want []string
		for _, field := range fieldsOf(t, string(text), test.message) {
			want = append(want, field[2])
		}
		if diff := cmp.Diff(want, numbersOf(t, test.encoded)); diff != "" {
			t.Errorf("%s: numbers: %s", test.message, diff)
		}
		var names []string
		for _, field := range fieldsOf(t, string(text), test.message) {
			names = append(names, field[1])
		}
		if diff := cmp.Diff(names, test.fields); diff != "" {
			t.Errorf("%s: names: %s", test.message, diff)
		}
	}
}

// actionBytes is the encoded action, taken from its list.
func actionBytes(t *testing.T) []byte {
	t.Helper()
	list := tink.Marshal(&tink.Actions{List: []tink.Action{action}})
	_, _, n := protowire.ConsumeTag(list)
	inner, m := protowire.ConsumeBytes(list[n:])
	if m < 0 {
		t.Fatal(protowire.ParseError(m))
	}
	return inner
}

func fieldsOf(t *testing.T, proto, message string) [][]string {
	t.Helper()
	_, body, ok := strings.Cut(proto, "message "+message+" {")
	body, _, closed := strings.Cut(body, "\n}")
	if !ok || !closed {
		t.Fatalf("no message %s in Tink's file", message)
	}
	return regexp.MustCompile(`(?m)^\s*[\w. ]+ (\w+) = (\d+);`).FindAllStringSubmatch(body, -1)
}

func numbersOf(t *testing.T, b []byte) (numbers []string) {
	t.Helper()
	seen := map[protowire.Number]bool{}
	for len(b) > 0 {
		number, _, n := protowire.ConsumeField(b)
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		b = b[n:]
		if !seen[number] {
			seen[number] = true
			numbers = append(numbers, strconv.Itoa(int(number)))
		}
	}
	return numbers
}

func TestCalls(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := tink.NewGRPC(&tink.Server{
		Workflows: map[string][]tink.Workflow{"w": {{ID: "f", Actions: []tink.Action{action}}}},
		Refused:   []string{"stranger"},
	})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	client, err := tink.Dial(listener.Addr().String(), grpc.WithUserAgent("test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	contexts, err := client.Contexts(ctx, "w")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]tink.Context{{WorkflowID: "f", CurrentWorker: "w", TotalActions: 1}}, contexts); diff != "" {
		t.Error(diff)
	}
	if contexts, err = client.Contexts(ctx, "somebody else"); err != nil || len(contexts) != 0 {
		t.Errorf("somebody else has workflows: %v, %v", contexts, err)
	}
	if _, err = client.Contexts(ctx, ""); status.Code(err) != codes.InvalidArgument {
		t.Errorf("no worker id: %v", err)
	}
	if _, err = client.Contexts(ctx, "stranger"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a worker that is refused: %v", err)
	}
	actions, err := client.Actions(ctx, "f")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]tink.Action{action}, actions); diff != "" {
		t.Error(diff)
	}
	if _, err = client.Actions(ctx, "none"); status.Code(err) != codes.NotFound {
		t.Errorf("no such workflow: %v", err)
	}
	if err := client.Report(ctx, report); err != nil {
		t.Error(err)
	}
}

func FuzzUnmarshal(f *testing.F) {
	f.Add(tink.Marshal(&workflow))
	f.Add(tink.Marshal(&tink.Actions{List: []tink.Action{action}}))
	f.Add(tink.Marshal(&report))
	f.Add([]byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add([]byte{0x3a, 0x02, 0x08})
	f.Fuzz(func(t *testing.T, b []byte) {
		var status tink.ActionStatus
		_ = tink.Unmarshal(b, &status)
		var contexts tink.Context
		_ = tink.Unmarshal(b, &contexts)
		var actions tink.Actions
		if tink.Unmarshal(b, &actions) != nil {
			return
		}
		var again tink.Actions
		if err := tink.Unmarshal(tink.Marshal(&actions), &again); err != nil {
			t.Fatalf("what was decoded does not encode: %v", err)
		}
		if diff := cmp.Diff(actions, again); diff != "" {
			t.Fatal(diff)
		}
	})
}
