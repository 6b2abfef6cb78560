package relay

import (
	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/trace"
)

// Trace is the last packets.
func (r *Relay) Trace() *trace.Ring { return r.trace }

func newTrace(r *Relay) *trace.Ring {
	return trace.New(r.config.TracePackets, trace.Protocol{
		Wall: r.wall, Of: isOf, Blank: func(b []byte) { blank(dhcp.Message(b)) },
	})
}

// isOf tells whether a packet belongs to a client.
func isOf(b []byte, isFrame bool, chaddr []byte) bool {
	m := dhcp.Message(b)
	if isFrame {
		datagram, fault := frame.Parse(b, frame.Trust)
		if fault != frame.OK {
			return false
		}
		m = datagram.Payload
	}
	if m.Check() != dhcp.OK || int(m.HLen()) < len(chaddr) {
		return false
	}
	got := m.Chaddr()
	return string(got[:len(chaddr)]) == string(chaddr)
}
