package bootfile

import (
	"path"
	"sync"
	"time"
)

// Names finds the files that HTTP clients mean by paths as firmware writes them. Its methods wait for the disk.
type Names struct {
	directory, path string

	mu     sync.Mutex
	index  *index // nil until the directory was read
	looked time.Time
}

// NewNames finds what is below a path of a directory, "." for all of it. The directory may be a symbolic link that is
// replaced, as fetch does.
func NewNames(directory, below string) *Names {
	return &Names{directory: directory, path: path.Clean(below)}
}

// Find finds the name, in the directory, of the file that a URL's path means.
func (n *Names) Find(asked string) (name string, ok bool) {
	below, ok := clean(asked)
	if !ok {
		return "", false
	}
	if n.path != "." {
		at := len(n.path)
		if len(below) <= at || below[at] != '/' || lower(below[:at]) != lower(n.path) {
			return "", false
		}
		below = below[at+1:]
	}
	x := n.current(time.Now())
	if x == nil {
		return "", false
	}
	name, ok = x.find(below)
	return path.Join(n.path, name), ok
}

// current has the names that are there now, or were a few seconds ago.
func (n *Names) current(now time.Time) *index {
	n.mu.Lock()
	defer n.mu.Unlock()
	if now.Sub(n.looked) < lookEvery {
		return n.index
	}
	n.looked = now
	n.index, _ = n.index.again(n.directory, n.path, now) // without the directory there are no names
	n.index.close()                                      // the names are all that is wanted
	return n.index
}
