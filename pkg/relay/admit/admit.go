// Package admit decides which DHCP requests go to the servers and which are refused, when more machines ask than the
// servers answer.
//
// It identifies a client by a tag, which is a keyed hash of the client's addresses and identifiers. Times are
// nanoseconds of the caller's clock. The package does no I/O and starts no goroutine: a [Gate] decides about requests
// under way, a [Limiter] about a client's rate. All memory has a fixed size.
//
// docs/design/decisions.md has the reasons for these decisions, and the attacks that they do not stop.
package admit

import (
	"hash/maphash"
	"sync"
	"time"
)

// Refusal is the reason for which a request is refused. The zero value is none.
type Refusal uint8

// The refusals.
const (
	Admitted  Refusal = iota
	Client            // this client asks too often
	Total             // all clients together do
	Newcomers         // more clients that were never served ask than the servers answer
)

// Asker describes a request and its client.
type Asker struct {
	// Tag identifies the client, 0 for one without an identity.
	Tag uint64
	// Also is a second name of the client, which has a limit of its own: 0 if there is none.
	Also uint64
	// XID is the request's transaction.
	XID uint32
	// Unicast tells that the request was sent to this host.
	Unicast bool
	// IsRequest tells that the message is a REQUEST, for an address that a server has offered.
	IsRequest bool
}

// class orders the clients that were never served. Each class has tokens of its own, so that a flood of
// one takes nothing of the others.
type class uint8

const (
	follows     class = iota // a REQUEST after an OFFER that went through here
	vouched                  // the client was offered something before, as by proxyDHCP, or has asked four times or more
	askedThrice              // the client has asked three times
	askedTwice               // twice
	first                    // once; or the servers have left several of its requests unanswered
	classes
)

// bursts are how many requests of each class may be unanswered: a thousand machines may be switched on at once. shares
// are the parts of the rate; what a class has no room for is the next one's.
var (
	bursts = [classes]float64{follows: 256, vouched: 256, askedThrice: 256, askedTwice: 256, first: 1024}
	shares = [classes]float64{follows: 1. / 2, vouched: 1. / 8, askedThrice: 1. / 8, askedTwice: 1. / 8, first: 1. / 8}
)

// NewcomerBurst is how many requests of machines that were never served may be unanswered before others are refused.
const NewcomerBurst = 2048

// Bounds of the requests of one client.
const (
	// apart is the least time between two requests that count as two: the fastest firmware asks again after a second, a
	// flood asks sooner.
	apart = 500 * time.Millisecond
	// mostTries is how many requests of a client may reach the servers and stay unanswered before other clients go first.
	mostTries = 3
	// offerHolds is the longest time from an OFFER to its REQUEST, and requestsOfOffer how often that may be repeated.
	offerHolds      = time.Minute
	requestsOfOffer = 4
)

// regain is how many tokens an answer gives back: the one that its request took, and an eighth more. By that eighth the
// rate rises to the rate of the servers, although some requests are lost, or come from machines that they do not know.
const regain = 1 + 1./8

// Gate decides about the requests of one listener, or those that were sent to this host.
type Gate struct {
	limits *Limiter
	seed   maphash.Seed
	rate   float64 // requests a second of newcomers beyond those that are answered; 0 or less: no limit

	mu      sync.Mutex
	tokens  [classes]float64
	at      int64 // the time of tokens
	served  table // clients that the servers gave an address
	offered table // clients that were offered an address; count is the number of REQUESTs since then
	asked   table // clients that were never answered; count is the number of their requests, tries that of those sent
}

// Sizes of the tables: clients, in sets of [ways].
const (
	servedClients  = 16384
	offeredClients = 16384
	askedClients   = 524288 // 26 s of 20,000 machines a second: firmware waits 4 s and then 8 s until it asks again
)

// NewGate makes a gate whose clients are held to limits, which several gates may share. rate is how many requests a
// second of newcomers are sent beyond those that are answered; 0 or less: no limit. Its memory is 4.3 MiB; a page of it
// becomes resident when a client's entry there is used.
func NewGate(rate int, limits *Limiter) *Gate {
	return &Gate{
		limits: limits, seed: maphash.MakeSeed(), rate: float64(rate), tokens: bursts,
		served: newTable(servedClients), offered: newTable(offeredClients), asked: newTable(askedClients),
	}
}

// transaction identifies a transaction.
type transaction struct {
	client uint64
	xid    uint32
}

// Ask decides about a request.
func (g *Gate) Ask(a *Asker, now int64) Refusal {
	g.mu.Lock()
	defer g.mu.Unlock()
	served := g.isServed(a.Tag)
	refused := g.limits.Allow(a, served, now)
	// Somebody who forges a served machine's chaddr uses up its allowance, with another transaction each time. The
	// machine repeats its own, and has a second allowance for that.
	if refused == Client && served &&
		g.noteRepeat(maphash.Comparable(g.seed, transaction{client: a.Tag, xid: a.XID}), now) &&
		g.limits.Repeats(a, served, now) {
		refused = Admitted
	}
	if refused == Admitted && !served && !g.spend(a.Tag, a.IsRequest, now) {
		refused = Newcomers
	}
	return refused
}

// isServed tells whether the servers gave a client an address before. The tag 0 stands for all clients without an
// identity, which are always new.
func (g *Gate) isServed(tag uint64) bool { return tag != 0 && g.served.find(tag) != nil }

// noteRepeat notes a tag, and reports whether it was noted half a second ago or earlier.
func (g *Gate) noteRepeat(tag uint64, now int64) bool {
	e, isNew := g.asked.put(tag, now)
	if isNew || e.age(now) < apart {
		return false
	}
	e.touch(now)
	return true
}

// spend takes a token for a newcomer's request, if there is one for its class.
func (g *Gate) spend(tag uint64, isRequest bool, now int64) bool {
	if g.rate <= 0 {
		return true
	}
	e, c := g.classOf(tag, isRequest, now)
	g.refill(now)
	if c == follows && g.tokens[c] < 1 {
		c = first // a REQUEST is worth more than a first DISCOVER
	}
	if g.tokens[c] < 1 {
		return false
	}
	g.tokens[c]--
	e.tries, e.paid = min(e.tries+1, mostTries), c
	return true
}

// classOf notes a request and returns the class of its client.
func (g *Gate) classOf(tag uint64, isRequest bool, now int64) (*entry, class) {
	e, isNew := g.asked.put(tag, now)
	switch {
	case tag == 0:
		return e, first
	case isNew:
		e.count = 1
	case e.age(now) >= apart:
		e.count = min(e.count+1, 4)
		e.touch(now)
	}
	o := g.offered.find(tag)
	switch {
	case o != nil && isRequest && o.age(now) <= offerHolds && o.count < requestsOfOffer:
		o.count++
		return e, follows
	case e.tries >= mostTries:
		return e, first
	case o != nil:
		return e, vouched
	}
	return e, [...]class{first, askedTwice, askedThrice, vouched}[e.count-1]
}

// Answer is the kind of a server's reply.
type Answer uint8

// The answers.
const (
	Other   Answer = iota // a NAK, or an ACK that gives no address
	Offered               // an OFFER
	Granted               // an ACK that gives an address, or a BOOTP reply
)

// Answered notes a reply to a client; isFirst tells that it is the first one to its request.
func (g *Gate) Answered(tag uint64, answer Answer, isFirst bool, now int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.asked.find(tag)
	if isFirst && !g.isServed(tag) {
		paid := first
		if e != nil {
			paid = e.paid
		}
		g.refill(now)
		g.add(paid, regain)
	}
	if tag == 0 {
		return
	}
	if e != nil {
		e.tries = 0
	}
	switch answer {
	case Offered:
		o, _ := g.offered.put(tag, now)
		o.count = 0
		o.touch(now)
	case Granted:
		s, _ := g.served.put(tag, now)
		s.touch(now)
	}
}

// refill adds the tokens of the time that has passed.
func (g *Gate) refill(now int64) {
	n := float64(now-g.at) * g.rate / 1e9
	g.at = now
	for c, share := range shares {
		g.add(class(c), n*share)
	}
}

// add adds tokens to a class; what it has no room for is the next one's.
func (g *Gate) add(c class, n float64) {
	for ; c < classes && n > 0; c++ {
		g.tokens[c] += n
		n = g.tokens[c] - bursts[c]
		g.tokens[c] = min(g.tokens[c], bursts[c])
	}
}
