package shaper

// backlog is a heap of the clients that wait: the one that was granted least is first; of equals, the one that came
// first.
type backlog []*client

// Len implements heap.Interface.
func (b backlog) Len() int { return len(b) }

// Less implements heap.Interface.
func (b backlog) Less(i, j int) bool {
	if b[i].granted != b[j].granted {
		return b[i].granted < b[j].granted
	}
	return b[i].order < b[j].order
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
