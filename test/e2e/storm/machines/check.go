package machines

import (
	"bytes"
	"errors"
	"fmt"
)

// errWrong is an answer that is not this machine's, or not whole, though the server says so.
var errWrong = errors.New("wrong answer")

// same compares what comes, piece by piece, with what it should be.
type same struct {
	what string
	want []byte
	at   int
}

// take takes the next piece.
func (s *same) take(piece []byte) error {
	if len(piece) > len(s.want)-s.at || !bytes.Equal(piece, s.want[s.at:s.at+len(piece)]) {
		return fmt.Errorf("%w: %s is torn between bytes %d and %d", errWrong, s.what, s.at, s.at+len(piece))
	}
	s.at += len(piece)
	return nil
}

// end says whether that was all.
func (s *same) end() error {
	if s.at != len(s.want) {
		return fmt.Errorf("%w: %s ends after %d of %d bytes", errWrong, s.what, s.at, len(s.want))
	}
	return nil
}

// own compares a word of an answer with what is this machine's.
func own(what, got, want string) error {
	if got != want {
		return fmt.Errorf("%w: %s is %.80q, this machine's is %q", errWrong, what, got, want)
	}
	return nil
}
