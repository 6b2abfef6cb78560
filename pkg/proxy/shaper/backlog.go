package shaper

// backlog is a heap of the clients that wait, by what they have had; of those with the same, the one that came first.
type backlog []*client

// Len implements heap.Interface.
func (b backlog) Len() int { return len(b) }

// Less implements heap.Interface.
func (b backlog) Less(i, j int) bool {
	if b[i].had != b[j].had {
		return b[i].had < b[j].had
	}
	return b[i].turn < b[j].turn
}

// Swap implements heap.Interface.
func (b backlog) Swap(i, j int) {
	b[i], b[j] = b[j], b[i]
	b[i].place, b[j].place = i, j
}

// Push implements heap.Interface.
func (b *backlog) Push(x any) {
	c := x.(*client)
	c.place = len(*b)
	*b = append(*b, c)
}

// Pop implements heap.Interface.
func (b *backlog) Pop() any {
	last := len(*b) - 1
	c := (*b)[last]
	(*b)[last] = nil
	*b = (*b)[:last]
	return c
}

// add puts a request behind the client's others.
func (c *client) add(w *Waiter) {
	w.prev, w.next = c.last, nil
	if c.last != nil {
		c.last.next = w
	} else {
		c.first = w
	}
	c.last = w
}

// remove takes a request out.
func (c *client) remove(w *Waiter) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		c.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		c.last = w.prev
	}
	w.client, w.prev, w.next = nil, nil, nil
}

// list is a row of requests that have been granted.
type list struct{ first, last *Waiter }

func (l *list) add(w *Waiter) {
	if l.last != nil {
		l.last.next = w
	} else {
		l.first = w
	}
	l.last = w
}

// without takes a request out of the row; false where it is not in it.
func (l *list) without(w *Waiter) bool {
	var before *Waiter
	for each := l.first; each != nil; before, each = each, each.next {
		if each != w {
			continue
		}
		if before != nil {
			before.next = w.next
		} else {
			l.first = w.next
		}
		if l.last == w {
			l.last = before
		}
		w.next = nil
		return true
	}
	return false
}

// call tells them.
func (l *list) call() {
	for w := l.first; w != nil; {
		next := w.next // behind the call the waiter may ask again
		w.next = nil
		w.Ready()
		w = next
	}
}
