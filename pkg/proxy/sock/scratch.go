package sock

import "sync"

// Scratch is memory for one read. More would not stay in the L2 cache.
type Scratch [32 << 10]byte

var scratches = sync.Pool{New: func() any { return new(Scratch) }}

// Borrow takes memory that is not in use.
func Borrow() *Scratch { return scratches.Get().(*Scratch) }

// Return gives it back.
func (b *Scratch) Return() { scratches.Put(b) }
