package lb

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tinkerbell/stack/pkg/frame"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/consent"
	"github.com/tinkerbell/stack/pkg/lb/elect"
)

// Times of the council.
const (
	// whoEvery is how often a node that has addresses looks who else might have them.
	whoEvery = 10 * time.Second
	// heardFor is how long a node that was heard is asked for consent while the API is there.
	heardFor = 3*whoEvery + time.Second
	// aloneFor is how long the number of nodes is remembered.
	aloneFor = time.Minute
)

// council has the nodes consent that holders of leases go on while the API is away: it asks, answers and counts. The
// rules are pkg/lb/consent's.
type council struct {
	c     *Controller
	codec *consent.Codec
	boot  uint64

	mu     sync.Mutex
	count  uint64
	rounds consent.Rounds
	memory consent.Memory
	rooms  map[int]*room // by link

	reading sync.WaitGroup
	// of run's goroutine
	alone   bool
	counted time.Time
}

// room is a link with those that are on it.
type room struct {
	link   address.Link
	frames Frames
	failed bool
	// heard are the nodes that might have a lease, and when they were heard; asked is when they were asked for what.
	heard      map[consent.ID]map[string]time.Time
	who, asked time.Time
}

// Frames are a link's frames of consent.EtherType; see wire.Frames.
type Frames interface {
	Send(to frame.MAC, payload []byte) error
	Receive() (from frame.MAC, payload []byte, err error)
	Close() error
}

// newCouncil makes a council; it is nil without a key.
func newCouncil(c *Controller) *council {
	if len(c.o.ConsentKey) == 0 {
		return nil
	}
	var boot [8]byte
	_, _ = rand.Read(boot[:]) // it never fails
	return &council{
		c: c, codec: consent.NewCodec(c.o.Namespace, c.o.ConsentKey), boot: binary.BigEndian.Uint64(boot[:]),
		rooms: map[int]*room{},
	}
}

// elects is what electors need of the council; nil is none.
func (n *council) elects(here func() bool) *elect.Consent {
	if n == nil {
		return nil
	}
	return &elect.Consent{Began: n.c.began, Here: here}
}

// run asks until ctx is done.
func (n *council) run(ctx context.Context) {
	if n == nil {
		return
	}
	defer func() {
		n.enter(nil)
		n.reading.Wait()
	}()
	ticker := time.NewTicker(n.c.o.Times.Retry / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		seats := n.seats()
		n.enter(seats)
		for link, vips := range seats {
			n.ask(ctx, link, vips)
		}
	}
}

// seats are the tasks of addresses by the link on which they are.
func (n *council) seats() map[int][]*vip {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	seats := map[int][]*vip{}
	for _, v := range n.c.vips {
		v.mu.Lock()
		if v.link.Index != 0 && !v.stopping {
			seats[v.link.Index] = append(seats[v.link.Index], v.vip)
		}
		v.mu.Unlock()
	}
	return seats
}

// on are the tasks of one link.
func (n *council) on(link int) []*vip { return n.seats()[link] }

// enter opens the links where there are addresses, and closes the others.
func (n *council) enter(seats map[int][]*vip) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for index, r := range n.rooms {
		if vips := seats[index]; len(vips) == 0 || r.failed || !vips[0].at().Is(r.link) {
			_ = r.frames.Close() // its reader ends
			delete(n.rooms, index)
		}
	}
	for index, vips := range seats {
		if n.rooms[index] != nil {
			continue
		}
		link := vips[0].at()
		frames, err := n.c.o.Host.Frames(link)
		if err != nil {
			vips[0].warn(link, "failed to open a link", err)
			continue
		}
		r := &room{link: link, frames: frames, heard: map[consent.ID]map[string]time.Time{}}
		n.rooms[index] = r
		n.reading.Go(func() { n.read(r) })
	}
}

// at is the link of the address.
func (v *vip) at() address.Link {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.link
}

func (v *vip) id() consent.ID { return consent.IDOf(LeaseName(v.ip)) }

// ask asks the other nodes on a link what has to be asked now.
func (n *council) ask(ctx context.Context, link int, vips []*vip) {
	n.mu.Lock()
	r := n.rooms[link]
	n.mu.Unlock()
	if r == nil {
		return
	}
	held, late, listed := 0, 0, true
	for _, v := range vips {
		switch {
		case v.elector.Holder().Identity != n.c.o.Identity:
			continue
		case !v.elector.Late():
			v.elector.List(n.members(ctx, r, v))
			listed = listed && len(v.elector.Asked()) > 0
		case len(v.elector.Asked()) > 0:
			late++
		}
		held++
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	switch {
	case late > 0 && now.Sub(r.asked) >= n.c.o.Times.Retry-n.c.o.Times.Retry/4:
		r.asked = now
		n.send(r, consent.Ask)
		n.settle(vips)
		at := time.Since(n.c.began).Nanoseconds()
		n.c.logLimiter.WarnAt(at, "asking the other nodes in place of the API", func() []any {
			return []any{"link", r.link.Name, "addresses", late, "nodes", vips[0].elector.Asked()}
		})
	case held > 0 && late == 0 && (now.Sub(r.who) >= whoEvery || !listed && now.Sub(r.who) >= 2*n.c.o.Times.Retry):
		r.who = now
		n.send(r, consent.Who)
	}
}

// send begins a round on a link. The caller holds mu.
func (n *council) send(r *room, kind consent.Kind) {
	m := consent.Message{Kind: kind, Boot: n.boot, From: n.c.o.Identity}
	_, _ = rand.Read(m.Nonce[:]) // it never fails
	n.count++
	m.Count = n.count
	n.rounds.Begin(m.Nonce, time.Since(n.c.began), kind == consent.Ask)
	if err := r.frames.Send(frame.Broadcast, n.codec.Append(nil, m)); err != nil {
		r.failed = true // it is opened again
	}
}

// members are whom to ask for an address: those that were heard, and this node. A node that hears nobody asks nobody,
// unless it is the only one of the cluster: others that it does not hear would wait for long where it dies.
func (n *council) members(ctx context.Context, r *room, v *vip) []string {
	n.mu.Lock()
	var nodes []string
	for node, at := range r.heard[v.id()] {
		if time.Since(at) < heardFor {
			nodes = append(nodes, node)
		}
	}
	n.mu.Unlock()
	if len(nodes) == 0 && !n.isAlone(ctx) {
		return nil
	}
	nodes = append(nodes, n.c.o.Node)
	slices.Sort(nodes)
	return nodes
}

// isAlone reports whether the cluster has no other node.
func (n *council) isAlone(ctx context.Context) bool {
	if time.Since(n.counted) < aloneFor && !n.counted.IsZero() {
		return n.alone
	}
	ctx, cancel := context.WithTimeout(ctx, n.c.o.Times.Retry)
	defer cancel()
	list, err := n.c.o.Client.CoreV1().Nodes().List(ctx, meta.ListOptions{Limit: 2})
	n.counted = time.Now()
	n.alone = err == nil && len(list.Items) == 1 && list.Items[0].Name == n.c.o.Node
	return n.alone
}

// read hears the other nodes on a link until it is closed.
func (n *council) read(r *room) {
	for {
		from, payload, err := r.frames.Receive()
		if err != nil {
			n.mu.Lock()
			r.failed = true
			n.mu.Unlock()
			return
		}
		m, ok, err := n.codec.Parse(payload)
		switch {
		case !ok:
		case err != nil:
			n.c.logLimiter.WarnAt(time.Since(n.c.began).Nanoseconds(), "refused the message of another node", func() []any {
				return []any{"link", r.link.Name, "mac", hardware(from), "error", err}
			})
		case m.Kind == consent.Ask || m.Kind == consent.Who:
			n.answer(r, from, m)
		default:
			n.take(r, m)
		}
	}
}

// answer answers another node with the leases that it may go on to hold.
func (n *council) answer(r *room, from frame.MAC, m consent.Message) {
	n.mu.Lock()
	fresh := n.memory.Fresh(m.Boot, m.Count)
	n.mu.Unlock()
	if !fresh || m.From == n.c.o.Identity {
		return
	}
	answer := consent.Message{Kind: consent.Here, Nonce: m.Nonce, Boot: n.boot, From: n.c.o.Node}
	if m.Kind == consent.Ask {
		answer.Kind = consent.Consents
	}
	var leases []consent.ID
	for _, v := range n.on(r.link.Index) {
		if m.Kind == consent.Ask && v.elector.Promise(m.From) ||
			m.Kind == consent.Who && v.elector.Holder().Identity == m.From {
			leases = append(leases, v.id())
		}
	}
	for answer.Leases = range slices.Chunk(leases, consent.MaxLeases) {
		_ = r.frames.Send(from, n.codec.Append(nil, answer)) // it asks again
	}
}

// take takes an answer.
func (n *council) take(r *room, m consent.Message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.rounds.Answer(m.Nonce, m.From, m.Leases, m.Kind == consent.Consents) {
		return
	}
	for _, id := range m.Leases {
		if r.heard[id] == nil {
			r.heard[id] = map[string]time.Time{}
		}
		r.heard[id][m.From] = time.Now()
	}
	n.settle(n.on(r.link.Index))
}

// settle tells the electors of the last round to which all have consented. The caller holds mu.
func (n *council) settle(vips []*vip) {
	for _, v := range vips {
		if start, ok := n.rounds.Start(v.id(), v.elector.Asked(), n.c.o.Node); ok {
			v.elector.Consented(n.c.began.Add(start))
		}
	}
}
