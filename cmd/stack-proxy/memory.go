package main

import (
	"github.com/tinkerbell/stack/pkg/proxy/bounds"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/route"
)

// The parts of memory and descriptors that connections cannot have (docs/design/decisions.md).
const (
	// programMemory is what the program takes by itself, in bytes; sessionMemory a datagram session.
	programMemory, sessionMemory = 32 << 20, 5 << 10
	// programDescriptors are for the admin port, listeners, files and lookups; routeDescriptors for each route's idle
	// connections to endpoints.
	programDescriptors, routeDescriptors = 128, 64
)

// reserve is the memory and the descriptors that connections cannot have. Boots is the memory that the records of
// machines' boots take, in bytes.
func reserve(t route.Table, boots int64) bounds.Reserve {
	sessions := 0
	for _, r := range t.Routes {
		if r.Protocol.Network() == "udp" && r.Protocol != route.Syslog {
			sessions += datagram.DefaultMaxSessions
		}
	}
	return bounds.Reserve{
		Memory:      programMemory + int64(sessions)*sessionMemory + boots,
		Descriptors: programDescriptors + len(t.Routes)*routeDescriptors + sessions,
	}
}
