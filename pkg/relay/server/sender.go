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
	config SenderConfig
	batch  *mmsg.SendBatch
}

// NewSender makes a sender.
func NewSender(c SenderConfig) *Sender {
	return &Sender{config: c, batch: mmsg.NewSendBatch(false, c.Failed)}
}

// Send gives a request to every server. The message stays as it is until Flush. answerExpected says that each server
// answers, and by way of this relay.
func (s *Sender) Send(to *Targets, now int64, message []byte, answerExpected bool) {
	for i := range to.All {
		t := &to.All[i]
		if s.batch.Full() {
			s.Flush()
		}
		s.batch.AddUDP(message, t.Addr, to.Source, 0)
		t.Server.Asked(now, answerExpected)
		s.config.Trace.Payload(now, netip.AddrPortFrom(to.Source, s.config.Port), t.Addr, message)
	}
}

// Len is how many packets wait for Flush.
func (s *Sender) Len() int { return s.batch.Len() }

// Clear forgets what waits for Flush.
func (s *Sender) Clear() { s.batch.Clear() }

// Flush sends what Send has collected.
func (s *Sender) Flush() {
	if s.batch.Len() > 0 {
		s.config.Own().Send(s.batch)
	}
}
