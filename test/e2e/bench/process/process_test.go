package process

import (
	"net"
	"os/exec"
	"strings"
	"testing"
)

func TestProcess(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	addr := listener.Addr().String()
	sh, err := Find("sh")
	if err != nil {
		t.Skipf("needs a shell: %v", err)
	}
	cmd := exec.CommandContext(t.Context(), sh, "-c", "(while :; do :; done) & wait")
	p, err := Start(t.Context(), "busy", addr, cmd)
	if err != nil {
		t.Fatal(err)
	}
	for p.CPU() < 0.05 && t.Context().Err() == nil { // the child's, not the shell's
		if len(p.PIDs()) > 2 {
			t.Fatal("the shell has more than one child")
		}
	}
	if p.Memory() == 0 {
		t.Error("it has no memory")
	}
	p.Stop()
	if cmd.ProcessState == nil || p.CPU() != 0 {
		t.Errorf("it goes on: %v", cmd.ProcessState)
	}
	_ = listener.Close()
	cmd = exec.CommandContext(t.Context(), sh, "-c", "echo port is taken >&2; exit 1")
	if _, err := Start(t.Context(), "broken", addr, cmd); err == nil || !strings.Contains(err.Error(), "port is taken") {
		t.Errorf("got %v, want what the program said", err)
	}
}
