//go:build !race

package journal

const racing = false
