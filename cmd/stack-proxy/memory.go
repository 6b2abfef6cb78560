package main

import (
	"math"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
)

// Garbage collection. The live heap is a few megabytes, so at Go's own pace a busy proxy collects hundreds of times a
// second; at four times the heap it costs nothing that can be seen. The container's limit stays the bound.
const (
	gcPercent = 400
	// limitShare of the container's memory is Go's own soft limit, in percent; the rest is for stacks and buffers
	// that it does not count.
	limitShare = 80
)

// tuneMemory sets both, unless GOGC or GOMEMLIMIT do.
func tuneMemory() {
	if was := debug.SetGCPercent(gcPercent); was != 100 {
		debug.SetGCPercent(was)
	}
	if debug.SetMemoryLimit(-1) != math.MaxInt64 {
		return
	}
	for _, path := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err == nil && limit > 0 && limit < 1<<50 { // "max", or as good as
			debug.SetMemoryLimit(limit / 100 * limitShare)
		}
		return
	}
}
