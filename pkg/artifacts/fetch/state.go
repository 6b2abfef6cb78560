package fetch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// State is how a set, or one download, is: a label of the metrics, a word on the status page.
type State uint8

// The states.
const (
	StatePending     State = iota // not looked at yet
	StateFetching                 // a check is under way
	StateCurrent                  // what the release has is what is served
	StateUnavailable              // the release cannot be reached, or is gone; it is asked again
	StateInvalid                  // the release is wrong: a digest, its list, an archive
	StateFull                     // the volume has no space
	StateReadOnly                 // the volume cannot be written
	StateLocked                   // another replica writes the volume
	StateFailed                   // anything else: the log has it
	states
)

func (s State) String() string {
	return [...]string{
		"pending", "fetching", "current", "unavailable", "invalid", "full", "read_only", "locked", "failed",
	}[s]
}

// The faults that a state is made of.
var (
	errVanished = errors.New("release does not have it")
	errDigest   = errors.New("digest is wrong")
	errArchive  = errors.New("archive is not safe to extract")
	errConflict = errors.New("two artifacts hold the same file")
	errStalled  = errors.New("no byte arrived in time")
	errTooLarge = errors.New("larger than maxSize")
	errNoMatch  = errors.New("the release has nothing that was asked for")
	errNoSpace  = errors.New("not enough space")
	errLocked   = errors.New("another process writes the volume")
)

// statusError is an answer that was neither 200 nor 206.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("server answered with status %d", int(e)) }

// stateOf tells an error's state.
func stateOf(err error) State {
	var status statusError
	var network net.Error
	switch {
	case err == nil:
		return StateCurrent
	case errors.Is(err, errNoSpace), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return StateFull
	case errors.Is(err, syscall.EROFS), errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return StateReadOnly
	case errors.Is(err, errDigest), errors.Is(err, errArchive), errors.Is(err, errConflict),
		errors.Is(err, errMalformed), errors.Is(err, errTooLarge), errors.Is(err, errNoMatch):
		return StateInvalid
	case errors.Is(err, errLocked):
		return StateLocked
	case errors.Is(err, errVanished), errors.Is(err, errStalled), errors.As(err, &status), errors.As(err, &network),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, errTransfer):
		return StateUnavailable
	default:
		return StateFailed
	}
}
