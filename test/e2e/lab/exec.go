package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// execs counts what was started by Exec, for names.
var execs atomic.Uint64

// Exec starts a program of the pod once more with other arguments, as "kubectl exec" does in its container: with its
// environment, rights and files. It returns what the program prints.
func (l *Lab) Exec(ctx context.Context, program string, args ...string) (string, error) {
	p, _, err := l.program(program)
	if err != nil {
		return "", err
	}
	if p.Role != RolePod {
		return "", fmt.Errorf("failed to execute %s: it is not in the pod", program)
	}
	if security := l.opts.Security[program]; security != nil {
		p.Security = security
	}
	var said bytes.Buffer
	p.Name = fmt.Sprintf("%s-exec-%d", program, execs.Add(1))
	p.Args, p.Env, p.Stdout = args, append(p.Env, l.opts.Env[program]...), &said
	err = l.Run(ctx, p)
	if err == nil {
		err = os.Remove(l.LogPath(p.Name)) // a log is for what went wrong
	}
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return said.String(), err
}
