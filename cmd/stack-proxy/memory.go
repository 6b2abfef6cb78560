package main

import (
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/route"
)

// The parts of memory and descriptors that connections cannot have (docs/design/decisions.md).
const (
	// programMemory is what the program and its queues take, in bytes; sessionMemory a datagram session.
	programMemory, sessionMemory = 36 << 20, 5 << 10
	// programDescriptors are for the admin port, listeners, files and lookups; routeDescriptors for each route's idle
	// connections to endpoints.
	programDescriptors, routeDescriptors = 128, 64
)

// reserve is the memory and the descriptors that connections cannot have.
func reserve(t route.Table) admission.Reserve {
	sessions := 0
	for _, r := range t.Routes {
		if r.Protocol.Network() == "udp" && r.Protocol != route.Syslog {
			sessions += datagram.DefaultMaxSessions
		}
	}
	return admission.Reserve{
		Memory:      programMemory + int64(sessions)*sessionMemory,
		Descriptors: programDescriptors + len(t.Routes)*routeDescriptors + sessions,
	}
}
