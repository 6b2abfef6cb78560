// Package list has doubly linked lists whose links are fields of the elements, so that to add one allocates nothing.
package list

// List is a list of elements. The zero List is empty. It may be copied only to be moved.
type List[T any] struct {
	first, last *Link[T]
	n           int
}

// Link is an element's place in one list at a time.
type Link[T any] struct {
	prev, next *Link[T]
	element    T
}

// Len is the number of elements.
func (l *List[T]) Len() int { return l.n }

// First returns the first element, or the zero T where there is none.
func (l *List[T]) First() T { return l.first.get() }

// Last returns the last element, or the zero T where there is none.
func (l *List[T]) Last() T { return l.last.get() }

// Next returns the element behind that of k, or the zero T where there is none.
func (k *Link[T]) Next() T { return k.next.get() }

func (k *Link[T]) get() (element T) {
	if k != nil {
		element = k.element
	}
	return element
}

// Add puts an element, whose link is k and in no list, behind the others.
func (l *List[T]) Add(k *Link[T], element T) {
	*k = Link[T]{prev: l.last, element: element}
	if l.last != nil {
		l.last.next = k
	} else {
		l.first = k
	}
	l.last = k
	l.n++
}

// Remove takes out the element with the link k, which is in this list.
func (l *List[T]) Remove(k *Link[T]) {
	if k.prev != nil {
		k.prev.next = k.next
	} else {
		l.first = k.next
	}
	if k.next != nil {
		k.next.prev = k.prev
	} else {
		l.last = k.prev
	}
	*k = Link[T]{}
	l.n--
}

// Take takes out the first element, and returns it, or the zero T where there is none.
func (l *List[T]) Take() (element T) {
	if k := l.first; k != nil {
		element = k.element
		l.Remove(k)
	}
	return element
}
