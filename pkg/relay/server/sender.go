package server

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/pkg/mmsg"
	"github.com/tinkerbell/stack/pkg/relay/socket"
	"github.com/tinkerbell/stack/pkg/relay/trace"
)

// SenderConfig makes a [Sender].
type SenderConfig struct {
	// Own is the socket to whose port servers answer, and Port that port.
	Own   func() *socket.Socket
	Port  uint16
	Trace *trace.Ring
	// Failed is called for each request that the kernel refused.
	Failed func(unix.Errno)
}

// Sender sends requests to the servers, for one goroutine.
type Sender struct {
	config        SenderConfig
	usual, detour *mmsg.SendBatch // by Own, and by the targets' detours
}

// NewSender makes a sender.
func NewSender(c SenderConfig) *Sender {
	return &Sender{
		config: c, usual: mmsg.NewSendBatch(false, c.Failed), detour: mmsg.NewSendBatch(false, c.Failed),
	}
}

// Request is what Send sends.
type Request struct {
	// Message stays as it is until Flush.
	Message []byte
	// AnswerExpected tells whether each server answers, and by way of this relay: else silence means nothing.
	AnswerExpected bool
	// GivenBefore is what a server must have given the client before, for its silence to this request to mean something;
	// [Nothing] where it never does.
	GivenBefore Given
	// Machine is the client's tag, 0 where it is not known, and MAC its hardware address for the log.
	Machine uint64
	MAC     [6]byte
	// UsualPort has the request leave by the usual port always.
	UsualPort bool
}

// Send gives a request to every server.
func (s *Sender) Send(to *Targets, now int64, r Request) {
	for i := range to.All {
		t := &to.All[i]
		out := s.usual
		if t.Detour != nil && !r.UsualPort {
			out = s.detour
		}
		if out.Full() {
			s.Flush(to)
		}
		out.AddUDP(r.Message, t.Addr, to.Source, 0)
		t.Server.Asked(now, &r)
		s.config.Trace.Payload(now, netip.AddrPortFrom(to.Source, s.config.Port), t.Addr, r.Message)
	}
}

// Len is how many packets wait for Flush, to leave by the usual port and by the detour.
func (s *Sender) Len() (usual, detour int) { return s.usual.Len(), s.detour.Len() }

// Clear forgets what waits for Flush.
func (s *Sender) Clear() {
	s.usual.Clear()
	s.detour.Clear()
}

// Flush sends what Send has collected.
func (s *Sender) Flush(to *Targets) {
	if s.usual.Len() > 0 {
		s.config.Own().Send(s.usual)
	}
	if s.detour.Len() == 0 {
		return
	}
	for i := range to.All {
		if detour := to.All[i].Detour; detour != nil {
			detour.Send(s.detour) // all detours are the same socket
			return
		}
	}
}
