package admission

import (
	"cmp"
	"errors"
	"log/slog"
	"math"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/cgroup"
)

// Garbage collection. The live heap is a few megabytes, so with Go's default a busy proxy would collect hundreds of
// times a second. At three times the live heap the collector's cost is not measurable, and at five times it takes
// 10 MiB more. The container's limit stays the bound.
const (
	gcPercent = 200
	// limitShare is Go's soft limit in percent of the container's memory; the rest is for memory that Go does not count.
	limitShare = 80
)

// Tune sets both, unless GOGC or GOMEMLIMIT do, and returns the container's memory; nil if that has no limit or cannot
// be read.
func Tune(log *slog.Logger) Gauge {
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
	// freeMemory is taken for the container's memory if that has no limit, in bytes.
	freeMemory = 2 << 30
	// connectionShare is the connections' share of the remaining memory, in percent: the kernel's buffers have the rest.
	connectionShare = 60
	// mostDescriptors bounds the descriptors if their limit is higher.
	mostDescriptors = 1 << 20
)

// Reserve is kept from connections, but no more than half of all.
type Reserve struct {
	Memory      int64 // bytes
	Descriptors int
}

// limits bound the connections' part of the container's memory (0: no limit) and of the process' descriptors.
func (r Reserve) limits(memory int64, descriptors uint64) Limits {
	memory = cmp.Or(memory, freeMemory)
	have := int(min(descriptors, mostDescriptors))
	return Limits{
		Memory:      (memory - min(r.Memory, memory/2)) / 100 * connectionShare,
		Descriptors: have - min(r.Descriptors, have/2),
	}
}

// Account makes the account that connections are charged to. The container may be nil.
func (r Reserve) Account(container Gauge, log *slog.Logger) *Account {
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
	return New(l, log)
}
