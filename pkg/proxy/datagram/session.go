package datagram

import (
	"net/netip"
	"slices"
	"time"
)

// A Session is one client address and port, the address that it asked, and a socket of its own towards the endpoint,
// unless the process itself answers.
type Session[T any] struct {
	Client    Peer
	Asked     netip.Addr
	Interface uint32
	Endpoint  Peer // where a request goes, if there is one; a protocol may know a better port for what follows
	// Transparent tells whether the endpoint sees the client's address.
	Transparent bool
	State       T

	open    bool
	socket  *Socket // nil where the process itself answers the client
	token   Token
	active  time.Time // the last datagram of either side
	timer   timer
	stepped time.Time // when the session began, the client made its last step, or the session ended: the latest of these
	steps   uint64    // the client's steps: datagrams that only a client which gets our answers can send ([Worker.Step])
	rank    rank
	groups  [groupCount]*group[T] // by list; nil where there is none
	links   [listCount]links[T]
}

// sessionKey identifies a session: a client that asks two addresses gets its answers from each.
type sessionKey struct {
	client Peer
	asked  netip.Addr
}

func (s *Session[T]) key() sessionKey { return sessionKey{s.Client, s.Asked} }

// Send sends data from the session's own socket to a server.
func (s *Session[T]) Send(data []byte, to Peer) error {
	err := s.socket.SendTo(data, to)
	if err != nil {
		s.socket.DrainErrors(func(Peer) {}) // the error may be an earlier datagram's
		err = s.socket.SendTo(data, to)
	}
	return err
}

// GrowBuffers asks for room for bytes in the session's own socket.
func (s *Session[T]) GrowBuffers(bytes int) { s.socket.GrowBuffers(bytes) }

// Open begins a session for the client of d, in place of the one it may have had.
func (w *Worker[T]) Open(d Datagram) (*Session[T], Drop, error) {
	if refusal := w.replace(d); refusal != NotDropped {
		return nil, refusal, nil
	}
	endpoint, err := w.options.Pick(d.Client.Addr())
	if err != nil {
		return nil, DropNoEndpoint, err
	}
	transparent := w.options.Transparent && CanSpeakFor(d.Client.Addr(), endpoint.Addr())
	if transparent && w.isSelf(endpoint) {
		return nil, DropLoop, nil // the listener would receive it as a client's, and begin another session
	}
	if refusal := w.makeRoom(d); refusal != NotDropped {
		return nil, refusal, nil
	}
	var socket *Socket
	if transparent {
		socket, err = openAs(d.Client.AddrPort)
	} else {
		socket, err = Open(endpoint.Addr())
	}
	if err != nil {
		return nil, DropSocket, err
	}
	if err := socket.ReportErrors(); err != nil {
		socket.Close()
		return nil, DropSocket, err
	}
	token := w.token()
	if err := w.poller.Add(socket, token); err != nil {
		socket.Close()
		w.vacant = append(w.vacant, token.ID)
		return nil, DropSocket, err
	}
	s := w.add(d, token)
	s.Endpoint, s.Transparent, s.socket = Peer{AddrPort: unmap(endpoint)}, transparent, socket
	return s, NotDropped, nil
}

// OpenServed is Open for a client whom the process itself answers: the session has neither endpoint nor socket.
func (w *Worker[T]) OpenServed(d Datagram) (*Session[T], Drop) {
	if refusal := w.replace(d); refusal != NotDropped {
		return nil, refusal
	}
	if refusal := w.makeRoom(d); refusal != NotDropped {
		return nil, refusal
	}
	return w.add(d, w.token()), NotDropped
}

// replace ends the session that the client of d has, if another one may begin.
func (w *Worker[T]) replace(d Datagram) Drop {
	if w.draining {
		return DropDraining
	}
	if FromOurselves(d.Client, d.Asked) {
		return DropLoop
	}
	if old := w.session(d); old != nil {
		w.close(old, EndReplaced)
	}
	return NotDropped
}

// add puts a new session into the table.
func (w *Worker[T]) add(d Datagram, token Token) *Session[T] {
	s := &Session[T]{
		Client:    d.Client,
		Asked:     d.Asked,
		Interface: d.Interface,
		open:      true,
		token:     token,
		active:    w.now,
		stepped:   w.now,
		rank:      rankNew,
	}
	w.sessions[token.ID] = s
	w.byClient[s.key()] = s
	w.live.push(s, listActivity)
	w.addToGroups(s)
	w.options.Limits.taken.Add(1)
	return s
}

// addToGroups puts a session into the groups whose bounds it counts for.
func (w *Worker[T]) addToGroups(s *Session[T]) {
	client := s.Client.Addr()
	s.groups[listWorker] = &w.all
	s.groups[listClient] = member(w.clients, client, listClient)
	if n := network(client); n.IsValid() {
		s.groups[listNetwork] = member(w.networks, n, listNetwork)
	}
	for _, g := range s.groups {
		if g != nil {
			g.add(s)
		}
	}
}

func member[K comparable, T any](groups map[K]*group[T], key K, list int) *group[T] {
	g := groups[key]
	if g == nil {
		g = &group[T]{list: list}
		groups[key] = g
	}
	return g
}

// removeFromGroups takes a session out of its groups.
func (w *Worker[T]) removeFromGroups(s *Session[T]) {
	for _, g := range s.groups {
		if g != nil {
			g.remove(s)
		}
	}
	client := s.Client.Addr()
	if s.groups[listClient].n == 0 {
		delete(w.clients, client)
	}
	if g := s.groups[listNetwork]; g != nil && g.n == 0 {
		delete(w.networks, network(client))
	}
	s.groups = [groupCount]*group[T]{}
}

// isSelf tells whether an endpoint is our own listener.
func (w *Worker[T]) isSelf(endpoint netip.AddrPort) bool {
	local := w.listener.Local()
	if endpoint.Port() != local.Port() {
		return false
	}
	return endpoint.Addr().Unmap() == local.Addr() || local.Addr().IsUnspecified() && isLocal(endpoint.Addr().Unmap())
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

// makeRoom makes a place for the client of d, if need be by closing the session that has ended or whose client has been
// silent for longest. A session that may be alive is closed only for a client that asks for the second time.
func (w *Worker[T]) makeRoom(d Datagram) Drop {
	client := d.Client.Addr()
	total, perClient, perNetwork := w.options.Limits.numbers()
	if refusal := w.makeRoomIn(w.clients[client], perClient, d); refusal != NotDropped {
		return DropClientLimit
	}
	if n := network(client); n.IsValid() {
		if refusal := w.makeRoomIn(w.networks[n], perNetwork, d); refusal != NotDropped {
			return DropClientLimit
		}
	}
	return w.makeRoomIn(&w.all, total, d)
}

// NoteRefused remembers that a client was refused. It reports whether it had been in the last seconds: it asks again.
func (w *Worker[T]) NoteRefused(d Datagram) (before bool) {
	return w.refused.note(sessionKey{d.Client, d.Asked}, w.now)
}

// makeRoomIn closes at most two sessions, so that a group comes down to a lower bound over several new sessions.
func (w *Worker[T]) makeRoomIn(g *group[T], bound int, d Datagram) Drop {
	if g == nil || g.n < bound {
		return NotDropped
	}
	s, dead := g.victim(w.now, bound)
	if s == nil || !dead && !w.NoteRefused(d) {
		return DropTableFull
	}
	// Long sessions that are alive give way at a bounded rate, or no transfer would complete.
	if !dead && s.rank == rankLong && !g.takeLongEviction(w.now, bound) {
		return DropTableFull
	}
	w.close(s, EndEvicted)
	if g.n >= bound { // a bound that was lowered: a second one, if nobody misses it
		if s, dead := g.victim(w.now, bound); dead {
			w.close(s, EndEvicted)
		}
	}
	return NotDropped
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
	if s.rank == rankEnded || !s.open {
		return
	}
	s.active = w.now
	if w.live.last != s {
		w.live.remove(s, listActivity)
		w.live.push(s, listActivity)
	}
}

// Step notes a datagram of the session's client that only a client which has received the last answer can know to send.
// The more steps, and the later the last one, the later the session is evicted when the table is full.
func (w *Worker[T]) Step(s *Session[T]) {
	if s.rank == rankEnded || !s.open {
		return
	}
	s.steps++
	s.stepped = w.now
	w.setRank(s, rankOf(s.steps))
}

// setRank moves a session to the end of a rank's queues.
func (w *Worker[T]) setRank(s *Session[T], r rank) {
	for _, g := range s.groups {
		if g == nil || s.rank == r && g.queues[r].last == s {
			continue
		}
		g.queues[s.rank].remove(s, g.list)
		g.queues[r].push(s, g.list)
	}
	s.rank = r
}

// Finish marks a session as ended: it lingers, and is evicted first when its place is needed.
func (w *Worker[T]) Finish(s *Session[T]) {
	if s.rank == rankEnded || !s.open {
		return
	}
	w.live.remove(s, listActivity)
	s.stepped = w.now
	w.setRank(s, rankEnded)
}

// CloseSession ends a session at once.
func (w *Worker[T]) CloseSession(s *Session[T]) {
	if s.open {
		w.close(s, EndClosed)
	}
}

func (w *Worker[T]) close(s *Session[T], why End) {
	if s.rank != rankEnded {
		w.live.remove(s, listActivity)
	}
	w.removeFromGroups(s)
	if s.socket != nil {
		s.socket.Close()
		s.socket = nil
	}
	s.open = false
	w.forget(s)
	delete(w.byClient, s.key())
	w.sessions[s.token.ID] = nil
	w.vacant = append(w.vacant, s.token.ID)
	w.options.Limits.taken.Add(-1)
	w.handler.Closed(w, s, why)
}

func (w *Worker[T]) expire() {
	for s := w.live.first; s != nil && w.now.Sub(s.active) >= w.options.Limits.bounds.Load().Idle; s = w.live.first {
		w.close(s, EndIdle)
	}
	ended := &w.all.queues[rankEnded]
	for s := ended.first; s != nil && w.now.Sub(s.stepped) >= w.options.Limits.bounds.Load().Linger; s = ended.first {
		w.close(s, EndLingered)
	}
}

// closeTo ends the sessions towards endpoints that are gone.
func (w *Worker[T]) closeTo(gone func(endpoint netip.AddrPort) bool) {
	w.flush()
	for _, s := range slices.Clone(w.sessions) {
		if s != nil && s.Endpoint.IsValid() && gone(s.Endpoint.AddrPort) {
			w.close(s, EndClosed)
		}
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
