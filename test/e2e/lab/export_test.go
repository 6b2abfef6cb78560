package lab

import (
	"time"

	"github.com/miekg/dns"
)

// SecurityOf is what the lab confines one of its programs to.
func (l *Lab) SecurityOf(name string) (*Security, error) {
	program, _, err := l.program(name)
	return program.Security, err
}

// Resolve asks the lab's DNS from the pod.
func (l *Lab) Resolve(name string, kind uint16) (*dns.Msg, error) {
	return l.resolve(name, kind, 2*time.Second)
}

// JanitorPid is the pid of the process that removes the lab.
func (l *Lab) JanitorPid() int { return l.keep.janitor.Process.Pid }
