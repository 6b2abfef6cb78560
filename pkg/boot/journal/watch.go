package journal

import "sync"

// watchRoom is how many IDs wait for a watcher before it is told "" in their place.
const watchRoom = 256

// watchers are the readers of changes.
type watchers struct {
	mu  sync.Mutex
	all map[*watcher]struct{}
}

type watcher struct {
	ids  chan string
	lost bool // an ID found no room, and "" was not sent yet
}

// Watch delivers the IDs of machines that changed, until stop is called, which closes the channel. A reader that is too
// slow gets "" in place of the IDs that it missed.
func (j *Journal) Watch() (changes <-chan string, stop func()) {
	w := &watcher{ids: make(chan string, watchRoom)}
	l := &j.watchers
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[*watcher]struct{}{}
	}
	l.all[w] = struct{}{}
	return w.ids, sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.all, w)
		close(w.ids)
	})
}

// notify sends IDs to all watchers, and waits for none of them.
func (l *watchers) notify(ids map[string]struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.all {
		if w.lost {
			w.lost = !w.send("")
		}
		for id := range ids {
			if w.lost {
				break
			}
			w.lost = !w.send(id)
		}
	}
}

func (w *watcher) send(id string) bool {
	select {
	case w.ids <- id:
		return true
	default:
		return false
	}
}
