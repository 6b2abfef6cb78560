package datagram

import (
	"net/netip"
	"sync/atomic"
)

// own counts, by local port, the process's sockets towards endpoints, those of all routes: a loop may lead through
// several.
var own [1 << 16]atomic.Int32

// FromOurselves reports whether a datagram was sent by one of this process's sockets towards endpoints, so that to pass
// it on would be a loop: its port is one of theirs, and its source is the address that it was sent to or another of
// this host. A source that is a client's (see [Socket.Transparent]), or that address translation has changed, is not
// recognised.
func FromOurselves(client Peer, asked netip.Addr) bool {
	if own[client.Port()].Load() == 0 {
		return false
	}
	return client.Addr() == asked || client.Addr().IsLoopback() || isLocal(client.Addr())
}

// isLocal asks the kernel whether an address is this host's, by binding to it.
func isLocal(addr netip.Addr) bool {
	s, err := open(addr)
	if err != nil {
		return false
	}
	defer s.Close()
	return s.bind(addr, 0) == nil
}
