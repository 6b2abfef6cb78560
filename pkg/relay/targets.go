package relay

import (
	"time"

	"github.com/tinkerbell/stack/pkg/dhcp"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/relay/server"
)

// giaddrOf is the address that servers answer, zero where there is none.
func giaddrOf(to *server.Targets) [4]byte {
	if !to.Source.IsValid() {
		return [4]byte{}
	}
	return to.Source.As4()
}

// missing tells which of the targets a request lacks, None where it can be relayed.
func missing(to *server.Targets) Drop {
	switch {
	case len(to.All) == 0:
		return NoServer
	case !to.Source.IsValid():
		return NoGiaddr
	}
	return None
}

// newServers makes the servers' pool, which publishes the targets.
func newServers(r *Relay) *server.Pool {
	c := &r.config
	return server.New(server.Config{
		Names: c.Servers, Port: serverPort,
		Interface: c.UpstreamInterface, Address: c.UpstreamAddress,
		ResolveInterval: c.ResolveInterval, Lookup: c.Lookup, DeadAfter: c.DeadAfter,
		NoName: endpoint.ErrNotFound, Optional: c.ServersOptional,
		Crowded: r.crowded, Clock: r.now, Wall: r.wall, Publish: r.targets.Store,
		Words: server.Words{
			Source: "giaddr", Settings: "UPSTREAM_ADDRESS and UPSTREAM_INTERFACE", Identity: "xid or chaddr",
		},
		Logger: c.Logger, LogLimiter: r.logLimiter, Metrics: r.metrics.Servers,
	})
}

// answerable tells whether servers answer a request of this type: none does a RELEASE or a DECLINE (RFC 2131 section
// 4.3, 4.4.4).
func answerable(t dhcp.Type) bool { return t != dhcp.Release && t != dhcp.Decline }

// gives tells what a reply means for its client.
func gives(m dhcp.Message) server.Answer {
	switch t := m.Type(); {
	case t == dhcp.Offer:
		return server.Offered
	case t == dhcp.Ack && m.Yiaddr() != [4]byte{}: // an INFORM's ACK gives nothing
		return server.Granted
	}
	return server.Other
}

// asks tells which servers answer a request: those that know its client. Of those that are asked to extend a lease only
// the one that has it does, and of the requests that follow an OFFER only the one that is named (RFC 2131 section
// 4.3.2).
func asks(m dhcp.Message, kind dhcp.Type) server.Answer {
	switch kind {
	case dhcp.Discover:
		return server.Offered
	case dhcp.Requests:
		if _, named := m.Option(dhcp.OptionServerID); !named {
			return server.Granted
		}
	}
	return server.Other
}

// unsolicited notes a reply that matched nothing.
func (r *Relay) unsolicited(now int64, from peer, m dhcp.Message) {
	r.servers.Unsolicited()
	r.logLimiter.WarnAt(now, "dropped a reply that nobody asked for", func() []any {
		return []any{"source", from.String(), "type", m.Type().String(), "xid", m.XID(), "giaddr", dhcp.Addr(m.Giaddr())}
	})
}

// now is the relay's clock: nanoseconds since it was made.
func (r *Relay) now() int64 { return int64(time.Since(r.start)) }

// wall is the wall clock at a time of the relay's clock. It asks anew, since the wall clock may be set while the relay
// runs: machines often start before they know the time.
func (r *Relay) wall(at int64) time.Time { return time.Now().Add(time.Duration(at - r.now())) }

// unix is wall in seconds.
func (r *Relay) unix(now int64) uint32 { return uint32(r.wall(now).Unix()) }
