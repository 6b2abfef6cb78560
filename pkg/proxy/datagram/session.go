package datagram

import (
	"net/netip"
	"slices"
)

// Open begins a session for the client of d, in place of the one it may have had.
func (w *Worker[T]) Open(d Datagram) (*Session[T], Refusal, error) {
	if w.draining {
		return nil, RefusedDraining, nil
	}
	if Own(d.Client, d.Asked) {
		return nil, RefusedLoop, nil
	}
	if old := w.session(d); old != nil {
		w.close(old, EndReplaced)
	}
	endpoint, err := w.options.Pick(d.Client.Addr())
	if err != nil {
		return nil, RefusedNoEndpoint, err
	}
	if refusal := w.acquire(d.Client.Addr()); refusal != RefusedNot {
		return nil, refusal, nil
	}
	socket, err := Open(endpoint.Addr())
	if err == nil {
		err = socket.ReportErrors()
	}
	if err != nil {
		w.options.Limits.Release(d.Client.Addr())
		return nil, RefusedSocket, err
	}
	s := &Session[T]{
		Client:    d.Client,
		Asked:     d.Asked,
		Interface: d.Interface,
		Endpoint:  Peer{AddrPort: unmap(endpoint)},
		socket:    socket,
		active:    w.now,
	}
	s.token = w.token()
	if err := w.poller.Add(socket, s.token); err != nil {
		socket.Close()
		w.vacant = append(w.vacant, s.token.ID)
		w.options.Limits.Release(d.Client.Addr())
		return nil, RefusedSocket, err
	}
	w.sessions[s.token.ID] = s
	w.byClient[s.flow()] = s
	w.fresh.push(s)
	w.nLive++
	return s, RefusedNot, nil
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

func unmap(at netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
}

// Move sends the session to a newly picked endpoint, if there is another one of the same family.
func (w *Worker[T]) Move(s *Session[T]) {
	endpoint, err := w.options.Pick(s.Client.Addr())
	if err != nil {
		return
	}
	if endpoint = unmap(endpoint); endpoint.Addr().Is4() == s.Endpoint.Addr().Is4() {
		s.Endpoint = Peer{AddrPort: endpoint}
	}
}

// acquire takes a place, if need be that of the longest finished session, or else of the one that has longest waited
// for its client to confirm it. That is as good as dead: who asked in earnest reacts to an answer at once.
func (w *Worker[T]) acquire(client netip.Addr) Refusal {
	refusal := w.options.Limits.Acquire(client)
	switch refusal {
	case RefusedTableFull:
		for _, q := range []*queue[T]{&w.finished, &w.fresh} {
			if q.first != nil {
				w.close(q.first, EndEvicted)
				return w.options.Limits.Acquire(client)
			}
		}
	case RefusedClientLimit:
		for s := w.finished.first; s != nil; s = s.next {
			if s.Client.Addr() == client {
				w.close(s, EndEvicted)
				return w.options.Limits.Acquire(client)
			}
		}
	}
	return refusal
}

// token reserves a place in the list of sessions; its generation tells it from the place's earlier owners.
func (w *Worker[T]) token() Token {
	w.generation++
	if n := len(w.vacant); n > 0 {
		id := w.vacant[n-1]
		w.vacant = w.vacant[:n-1]
		return Token{ID: id, Generation: w.generation}
	}
	w.sessions = append(w.sessions, nil)
	return Token{ID: int32(len(w.sessions) - 1), Generation: w.generation}
}

func (w *Worker[T]) touch(s *Session[T]) {
	if s.lingering || s.socket == nil {
		return
	}
	s.active = w.now
	if q := w.queue(s); q.last != s {
		q.remove(s)
		q.push(s)
	}
}

// queue is the one that the session is in.
func (w *Worker[T]) queue(s *Session[T]) *queue[T] {
	switch {
	case s.lingering:
		return &w.finished
	case s.confirmed:
		return &w.live
	}
	return &w.fresh
}

// Confirm marks a session as one whose client reacted to an answer. Until then it gives way when the table is full.
func (w *Worker[T]) Confirm(s *Session[T]) {
	if s.confirmed || s.lingering || s.socket == nil {
		return
	}
	w.fresh.remove(s)
	s.confirmed = true
	w.live.push(s)
}

// Finish marks a session as ended: it lingers, and is the first to go when its place is needed.
func (w *Worker[T]) Finish(s *Session[T]) {
	if s.lingering || s.socket == nil {
		return
	}
	w.queue(s).remove(s)
	s.lingering = true
	s.active = w.now
	w.finished.push(s)
	w.nLive--
}

// CloseSession ends a session at once.
func (w *Worker[T]) CloseSession(s *Session[T]) {
	if s.socket != nil {
		w.close(s, EndClosed)
	}
}

func (w *Worker[T]) close(s *Session[T], why End) {
	w.queue(s).remove(s)
	if !s.lingering {
		w.nLive--
	}
	s.socket.Close()
	s.socket = nil
	delete(w.byClient, s.flow())
	w.sessions[s.token.ID] = nil
	w.vacant = append(w.vacant, s.token.ID)
	w.options.Limits.Release(s.Client.Addr())
	w.handler.Closed(w, s, why)
}

func (w *Worker[T]) expire() {
	for _, q := range []*queue[T]{&w.fresh, &w.live} {
		for s := q.first; s != nil && w.now.Sub(s.active) >= w.options.Timing.afterIdle(); s = q.first {
			w.close(s, EndIdle)
		}
	}
	for s := w.finished.first; s != nil && w.now.Sub(s.active) >= w.options.Timing.afterLinger(); s = w.finished.first {
		w.close(s, EndLingered)
	}
}

func (w *Worker[T]) closeAll() {
	w.flush()
	for _, s := range slices.Clone(w.sessions) {
		if s != nil {
			w.close(s, EndDrained)
		}
	}
}
