// Package bounds finds what connections may take of the container's memory and of the process' descriptors.
package bounds

import (
	"errors"
	"log/slog"
	"math"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/cgroup"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
)

// Garbage collection. The live heap is a few megabytes, so at Go's own pace a busy proxy collects hundreds of times a
// second; at four times the heap it costs nothing that can be seen. The container's limit stays the bound.
const (
	gcPercent = 400
	// limitShare of the container's memory is Go's own soft limit, in percent; the rest is for stacks and buffers
	// that it does not count.
	limitShare = 80
)

// Tune sets both, unless GOGC or GOMEMLIMIT do, and finds the container's memory; nil where it has no limit, or cannot
// be read.
func Tune(log *slog.Logger) admission.Gauge {
	if was := debug.SetGCPercent(gcPercent); was != 100 {
		debug.SetGCPercent(was)
	}
	container, err := cgroup.Open(cgroup.Root)
	if err != nil {
		if !errors.Is(err, cgroup.ErrNone) {
			log.Warn("failed to find the container's memory", "error", err)
		}
		return nil
	}
	if debug.SetMemoryLimit(-1) == math.MaxInt64 {
		debug.SetMemoryLimit(container.Limit() / 100 * limitShare)
	}
	return container
}

const (
	// freeMemory is what counts for the container's where that has no limit, in bytes.
	freeMemory = 2 << 30
	// connectionShare is the connections' share of the remaining memory, in percent: the kernel's buffers have the rest.
	connectionShare = 60
	// mostDescriptors is what counts of a limit that is as good as none.
	mostDescriptors = 1 << 20
)

// Reserve is what connections cannot have; half of the whole, at most, is kept for it.
type Reserve struct {
	Memory      int64 // bytes
	Descriptors int
}

// limits are what connections may take of the container's memory (0: no limit) and the process' descriptors.
func (r Reserve) limits(memory int64, descriptors uint64) admission.Limits {
	if memory == 0 {
		memory = freeMemory
	}
	have := int(min(descriptors, mostDescriptors))
	return admission.Limits{
		Memory:      (memory - min(r.Memory, memory/2)) / 100 * connectionShare,
		Descriptors: have - min(r.Descriptors, have/2),
	}
}

// Account makes what the connections' memory and descriptors are charged to. The container may be nil.
func (r Reserve) Account(container admission.Gauge, log *slog.Logger) *admission.Account {
	memory := int64(0)
	if container != nil {
		memory = container.Limit()
	}
	files := unix.Rlimit{Cur: 1024}
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		log.Warn("failed to read limit of descriptors", "error", err)
	}
	l := r.limits(memory, files.Cur)
	log.Info("bounds of connections", "memory_bytes", l.Memory, "container_bytes", memory, "descriptors", l.Descriptors)
	return admission.New(l, log)
}
