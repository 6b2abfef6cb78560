package lab

import (
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// SecurityOf is what the lab confines one of its programs to.
func (l *Lab) SecurityOf(name string) (*Security, error) {
	program, _, err := l.program(name)
	return program.Security, err
}

// Resolve asks the lab's DNS from the pod.
func (l *Lab) Resolve(name string, kind dnsmessage.Type) (*dnsmessage.Message, error) {
	return l.resolve(name, kind, 2*time.Second)
}

// JanitorPid is the pid of the process that removes the lab.
func (l *Lab) JanitorPid() int { return l.keep.janitor.Process.Pid }
