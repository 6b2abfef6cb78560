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
