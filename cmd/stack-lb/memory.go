package main

import (
	"log/slog"

	"github.com/tinkerbell/stack/pkg/lb/forward"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// The parts of memory and descriptors that the connections of mode proxy cannot have.
const (
	// programMemory is what the program takes by itself with the cluster's EndpointSlices, in bytes.
	programMemory = 48 << 20
	// programDescriptors are for the admin port, the API and links; sessionDescriptors for the UDP sessions of a port.
	programDescriptors, sessionDescriptors = 256, 16384
)

// bounded is what TCP connections in mode proxy may take of what the container and the process have.
func bounded(logger *slog.Logger) forward.Bounds {
	container := admission.Tune(logger)
	reserve := admission.Reserve{Memory: programMemory, Descriptors: programDescriptors + sessionDescriptors}
	return forward.Bounds{Account: reserve.Account(container, logger), Container: container}
}
