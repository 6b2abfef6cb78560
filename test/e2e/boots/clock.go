package boots

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/program"
)

// clock has the wall clock of the node's programs jump an hour ahead when the machine is in mid-boot, as a clock does
// that is set. Timers go on as they did.
var clock = &set{name: "clock", change: func(s *scene, o *lab.Options) error {
	programs, err := jumping(context.Background())
	if err != nil {
		return err
	}
	o.Programs, s.clockJumps = programs, time.Now().Add(40*time.Second)
	for name := range programs {
		o.Env[name] = append(o.Env[name], fmt.Sprintf("CLOCK_JUMPS_AT=%d", s.clockJumps.Unix()))
	}
	return nil
}}

// jump is a file of Go's package time.
const jump = `package time

import "syscall"

var jumpsAt = func() (at int64) {
	text, _ := syscall.Getenv("CLOCK_JUMPS_AT")
	for _, digit := range []byte(text) {
		at = 10*at + int64(digit-'0')
	}
	return at
}()

// jumped is the wall clock in seconds, an hour ahead once it has jumped.
func jumped(sec int64) int64 {
	if jumpsAt != 0 && sec >= jumpsAt {
		sec += 3600
	}
	return sec
}
`

// jumping builds the node's programs with a wall clock that jumps.
func jumping(ctx context.Context) (programs map[string]string, err error) {
	repo, err := program.Repo()
	if err != nil {
		return nil, err
	}
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("failed to find Go's sources: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	text, err := os.ReadFile(filepath.Join(original, "time.go"))
	if err != nil {
		return nil, fmt.Errorf("failed to find Go's sources: %w", err)
	}
	const reads = "sec, nsec, mono := runtimeNow()\n"
	changed := strings.Replace(string(text), reads, reads+"\tsec = jumped(sec)\n", 1)
	if changed == string(text) {
		return nil, errors.New("failed to change Go's clock: time.Now is another")
	}
	dir := filepath.Join(repo, "build", "bin", "jumping")
	overlay := filepath.Join(dir, "overlay.json")
	replaced, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(original, "time.go"): filepath.Join(dir, "time.txt"),
		filepath.Join(original, "jump.go"): filepath.Join(dir, "jump.txt"),
	}})
	err = errors.Join(err, os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "time.txt"), []byte(changed), 0o644),
		os.WriteFile(filepath.Join(dir, "jump.txt"), []byte(jump), 0o644),
		os.WriteFile(overlay, replaced, 0o644))
	if err != nil {
		return nil, err
	}
	var packages []string
	programs = map[string]string{}
	for _, name := range []string{lab.DHCPRelay, lab.StackProxy, lab.StackBoots} {
		packages = append(packages, "./cmd/"+name)
		programs[name] = filepath.Join(dir, name)
	}
	return programs, program.Build(ctx, repo, dir, packages, "-overlay", overlay)
}
