package forward

import (
	"context"
	"sync"

	"github.com/tinkerbell/stack/pkg/endpoint"
)

// slicesSource tells one pool what the EndpointSlices of a Service say.
type slicesSource struct {
	name  string
	known chan struct{} // closed when the pool knows the first answer

	mu      sync.Mutex
	members []endpoint.Member
	told    func() // to be called when the pool knows
	changed chan struct{}
}

func newSource(name string, members []endpoint.Member) *slicesSource {
	return &slicesSource{name: name, members: members, known: make(chan struct{}), changed: make(chan struct{})}
}

// set changes the endpoints. told is called when the pool knows them, unless they have changed again; it may be nil.
func (s *slicesSource) set(members []endpoint.Member, told func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members, s.told = members, told
	close(s.changed)
	s.changed = make(chan struct{})
}

// Watch implements endpoint.Source.
func (s *slicesSource) Watch(ctx context.Context, _ <-chan struct{}, update func([]endpoint.Member, error)) {
	for first := true; ; first = false {
		s.mu.Lock()
		members, told, changed := s.members, s.told, s.changed
		s.told = nil
		s.mu.Unlock()
		update(members, nil)
		if first {
			close(s.known)
		}
		if told != nil {
			told()
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// String implements endpoint.Source.
func (s *slicesSource) String() string { return s.name }
