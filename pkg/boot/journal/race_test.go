//go:build race

package journal

// racing is whether the race detector looks on: it makes what one goroutine computes ten times as slow, and has memory
// of its own. What is long is run without it, too.
const racing = true
