// Package loader keeps the loaders that a server gives to all machines alike, so that they are served from memory: as
// the server has them by HTTP, or by TFTP. docs/design/decisions.md has the decisions.
package loader

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
)

// Loader is a file in memory.
type Loader struct {
	name   string
	data   []byte
	digest [sha256.Size]byte
	tag    string // the server's ETag; empty: none
}

func newLoader(name string, data []byte) *Loader {
	return &Loader{name: name, data: data, digest: sha256.Sum256(data)}
}

// String is the loader's name, and the beginning of its SHA-256.
func (l *Loader) String() string { return l.name + "@" + hex.EncodeToString(l.digest[:6]) }

// Size is the loader's, in bytes; that of nil is 0.
func (l *Loader) Size() int64 {
	if l == nil {
		return 0
	}
	return int64(len(l.data))
}

// Read fills b from an offset on.
func (l *Loader) Read(b []byte, offset int64) error {
	if offset < 0 || offset > l.Size() || copy(b, l.data[offset:]) < len(b) {
		return fmt.Errorf("failed to read %s: %w", l.name, io.ErrUnexpectedEOF)
	}
	return nil
}

// Load reads as Read does, and then calls done.
func (l *Loader) Load(b []byte, offset int64, done func(error)) { done(l.Read(b, offset)) }

// Close does nothing: a loader is in memory for as long as it is referred to.
func (l *Loader) Close() {}

// same reports whether two loaders, which may be nil, have the same content.
func (l *Loader) same(other *Loader) bool {
	return l != nil && other != nil && l.digest == other.digest
}
