package main

import (
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
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
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
