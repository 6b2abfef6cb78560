package relay6

import (
	"bytes"

	"github.com/tinkerbell/stack/pkg/dhcp6"
	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/relay/trace"
)

// Trace is the last packets.
func (r *Relay) Trace() *trace.Ring { return r.trace }

func newTrace(r *Relay) *trace.Ring {
	return trace.New(r.config.TracePackets, trace.Protocol{Wall: r.wall, Of: isOf, Blank: r.blank})
}

// isOf tells whether a packet belongs to the owner of a MAC address: by the frame, by the relay agent's option 79, by a
// peer address that was made from the MAC address, or by a client identifier that ends with it.
func isOf(b []byte, isFrame bool, mac []byte) bool {
	if len(mac) != len(frame.MAC{}) {
		return false
	}
	m := dhcp6.Message(b)
	if isFrame {
		datagram, fault := frame.Parse6(b, frame.Trust)
		if fault != frame.OK {
			return false
		}
		if owner := frame.MAC(mac); datagram.SrcMAC == owner || datagram.DstMAC == owner {
			return true
		}
		m = datagram.Payload
	}
	if m.Check(dhcp6.HopLimit+1) != dhcp6.OK {
		return false
	}
	client, around := m.Innermost()
	if around != nil {
		if told, found := around.ClientLinkAddr(); found {
			return told == frame.MAC(mac)
		}
		if around.Peer() == frame.LinkLocal(frame.MAC(mac)) {
			return true
		}
	}
	duid, found := client.Option(dhcp6.OptionClientID)
	return found && bytes.HasSuffix(duid, mac)
}

// blank takes the code out of the token in a relay message, if there is one.
func (r *Relay) blank(b []byte) {
	m := dhcp6.Message(b)
	if len(r.config.TokenKey) == 0 || m.Check(dhcp6.HopLimit+1) != dhcp6.OK || !m.IsRelay() {
		return
	}
	if id, found := m.Option(dhcp6.OptionInterfaceID); found && len(id) >= tokenLen {
		clear(id[len(id)-tokenMAC:])
	}
}
