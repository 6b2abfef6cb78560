package rounds

import (
	"errors"
	"os/exec"

	"github.com/tinkerbell/stack/test/e2e/attack"
)

// Contain has a command run in a cgroup with the memory that the chart gives stack-proxy. The caller removes the cgroup
// once the process has ended. [ErrLeftOut] where none can be made.
func Contain(cmd *exec.Cmd) (*attack.Container, error) {
	limit, err := attack.ChartLimit("proxy")
	if err != nil {
		return nil, err
	}
	container, err := attack.NewContainer("bench", limit)
	if err != nil {
		return nil, errors.Join(ErrLeftOut, err)
	}
	within := exec.Command("unshare", container.Command(cmd.Path)[1:]...)
	cmd.Path, cmd.Args, cmd.Env = within.Path, within.Args, append(cmd.Env, attack.GoMemory(limit))
	return container, nil
}
