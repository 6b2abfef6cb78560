package main

import (
	"errors"
	"log/slog"
	"math"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/cgroup"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/route"
)

// Garbage collection. The live heap is a few megabytes, so at Go's own pace a busy proxy collects hundreds of times a
// second; at four times the heap it costs nothing that can be seen. The container's limit stays the bound.
const (
	gcPercent = 400
	// limitShare of the container's memory is Go's own soft limit, in percent; the rest is for stacks and buffers
	// that it does not count.
	limitShare = 80
)

// tuneMemory sets both, unless GOGC or GOMEMLIMIT do, and finds the container's memory; nil where it has no limit.
func tuneMemory() (*cgroup.Memory, error) {
	if was := debug.SetGCPercent(gcPercent); was != 100 {
		debug.SetGCPercent(was)
	}
	container, err := cgroup.Open(cgroup.Root)
	if errors.Is(err, cgroup.ErrNone) {
		return nil, nil
	}
	if err == nil && debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(container.Limit() / 100 * limitShare)
	}
	return container, err
}

// The parts of memory and descriptors that connections cannot have (docs/design/limits.md).
const (
	// freeMemory is what counts for the container's where that has no limit, in bytes.
	freeMemory = 2 << 30
	// programMemory is what the program takes by itself, in bytes; sessionMemory a datagram session.
	programMemory, sessionMemory = 32 << 20, 5 << 10
	// connectionShare is the connections' share of the remaining memory, in percent: the kernel's buffers have the rest.
	connectionShare = 60
	// programDescriptors are for the admin port, listeners, files and lookups; routeDescriptors for each route's idle
	// connections to endpoints.
	programDescriptors, routeDescriptors = 128, 64
)

// limits are what connections may take of the container's memory (0: no limit) and the process' descriptors. Boots is
// what is kept of machines that boot, in bytes.
func limits(t route.Table, memory, boots int64, descriptors uint64) admission.Limits {
	if memory == 0 {
		memory = freeMemory
	}
	sessions := 0
	for _, r := range t.Routes {
		if r.Protocol.Network() == "udp" && r.Protocol != route.Syslog {
			each := r.Limits.Sessions
			if each == 0 {
				each = datagram.DefaultMaxSessions
			}
			sessions += each
		}
	}
	others := programMemory + int64(sessions)*sessionMemory + boots
	l := admission.Limits{Memory: (memory - min(others, memory/2)) / 100 * connectionShare}
	have := int(min(descriptors, 1<<20))
	l.Descriptors = have - min(programDescriptors+len(t.Routes)*routeDescriptors+sessions, have/2)
	return l
}

// account makes what the connections' memory and descriptors are charged to.
func account(t route.Table, container *cgroup.Memory, boots int64, log *slog.Logger) *admission.Account {
	memory := int64(0)
	if container != nil {
		memory = container.Limit()
	}
	files := unix.Rlimit{Cur: 1024}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		log.Warn("failed to read limit of descriptors", "error", err)
	}
	l := limits(t, memory, boots, files.Cur)
	log.Info("bounds of connections", "memory_bytes", l.Memory, "container_bytes", memory, "descriptors", l.Descriptors)
	return admission.New(l, log)
}
