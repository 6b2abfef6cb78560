// Package admit decides which DHCP requests go to the servers at once, which wait for their turn and which are refused,
// when more machines ask than the servers answer.
//
// It knows clients by a tag, which is a keyed hash of what identifies them, and time as nanoseconds of the caller's
// clock. It does no I/O and starts nothing: a [Gate] decides, a [Room] keeps the bytes of what waits and hands them to
// the caller when their turn comes, a [Limiter] counts. Everything is of fixed size, whatever is sent.
//
// Why it decides as it does, and what an attacker can still do: docs/design/dhcp-relay.md.
package admit

import "time"

// Verdict is what happens to a request.
type Verdict uint8

// The verdicts.
const (
	Send   Verdict = iota // to the servers, now
	Wait                  // in the place that was given, until [Gate.Next] names it
	Refuse                // the places of its class are taken
)

// Class is how much speaks for a client that was never served. A lower one goes first.
type Class uint8

// The classes.
const (
	Follows     Class = iota // a REQUEST after an OFFER that went through here
	Vouched                  // offered something before, as by proxyDHCP; or asked four times or more, spread over time
	AskedThrice              // three times
	AskedTwice               // twice
	First                    // once; or asked the servers often enough already, in vain
	Classes
)

// What is known of a client's requests before they are counted as more than one.
const (
	// apart is the least time between two requests of a client that wants an answer and not a flood: the fastest
	// firmware asks again after a second.
	apart = 500 * time.Millisecond
	// mostTries is how often a client may reach the servers in vain before those that never did go first.
	mostTries = 3
	// offerHolds is how long after an OFFER its REQUEST may come, and requestsOfOffer how often.
	offerHolds      = time.Minute
	requestsOfOffer = 4
	// mostWait is how long a request waits. By then its sender has asked again, or does soon.
	mostWait = time.Second
)

// places is how many requests of each class may wait.
var places = [Classes]int{Follows: 256, Vouched: 128, AskedThrice: 128, AskedTwice: 256, First: 256}

// Places is how many requests may wait in all: places are numbered from 0 on.
const Places = 1024

// turns is which class is served in turn while several wait. Each class has its share, so that none starves, and what a
// class does not use goes to the first one that waits.
var turns = [...]Class{Follows, Vouched, Follows, AskedThrice, Follows, AskedTwice, Follows, First}

// NewcomerBurst is how many requests of machines that were never served may be unanswered before the rest waits: two
// thousand may be switched on at once.
const NewcomerBurst = 2048

// Limit is how much of the clients that were never served reaches the servers.
type Limit struct {
	// Rate is how many requests a second go out beyond those that are answered; 0 or less: no limit.
	Rate int
	// Burst is how many may be unanswered before that counts.
	Burst int
}

// regain is how much of the allowance an answer brings back: what was spent, and an eighth more, by which the rate
// rises to what the servers can do although some requests are lost, or are of machines that they do not know.
const regain = 1 + 1./8

// Gate is the way of one VLAN's requests to the servers. It is for one goroutine at a time, and what
// was given a place has to be put there before the next request.
type Gate struct {
	limit   Limit
	tokens  float64
	at      int64 // when tokens was true
	served  table // clients that the servers gave an address
	offered table // clients that were offered one; count is the REQUESTs since
	asked   table // clients that were never answered; count is how often they asked, tries how often they were sent
	free    []int32
	waiting [Classes]ring
	held    int // in all rings
	turn    int
}

// Sizes of the tables: clients, in sets of [ways].
const (
	servedClients  = 16384
	offeredClients = 16384
	askedClients   = 524288 // 26 s of 20,000 machines a second: firmware waits 4 s and then 8 s until it asks again
)

// NewGate makes a gate. Its memory is 4.3 MiB, of which the kernel gives what clients have touched.
func NewGate(limit Limit) *Gate {
	g := &Gate{
		limit: limit, tokens: float64(limit.Burst),
		served: newTable(servedClients), offered: newTable(offeredClients), asked: newTable(askedClients),
	}
	for place := range int32(Places) {
		g.free = append(g.free, place)
	}
	for class := range g.waiting {
		g.waiting[class].places = make([]held, places[class])
	}
	return g
}

// Served tells whether a client is one that the servers gave an address. Clients that nobody can tell apart have the
// tag 0, and are always new.
func (g *Gate) Served(tag uint64) bool { return tag != 0 && g.served.find(tag) != nil }

// Again tells whether a tag was noted half a second ago or earlier, and notes it. The caller asks about requests that
// it would refuse.
func (g *Gate) Again(tag uint64, now int64) bool {
	e, fresh := g.asked.put(tag, now)
	if fresh || e.age(now) < apart {
		return false
	}
	e.touch(now)
	return true
}

// Ask decides about a request of a client. With the verdict [Wait] comes a place; the caller puts the request there and
// calls [Gate.Put]. A served client's request is always sent: the caller limits those by client.
func (g *Gate) Ask(tag uint64, isRequest bool, now int64) (verdict Verdict, place int32, class Class) {
	if g.limit.Rate <= 0 || g.Served(tag) {
		return Send, 0, 0
	}
	e, class := g.class(tag, isRequest, now)
	g.refill(now)
	if g.held == 0 && g.tokens >= 1 {
		g.tokens--
		e.tries = min(e.tries+1, mostTries)
		return Send, 0, class
	}
	if g.waiting[class].full() || len(g.free) == 0 {
		return Refuse, 0, class
	}
	place = g.free[len(g.free)-1]
	g.free = g.free[:len(g.free)-1]
	return Wait, place, class
}

// class notes a request and tells how much speaks for its client.
func (g *Gate) class(tag uint64, isRequest bool, now int64) (*entry, Class) {
	e, fresh := g.asked.put(tag, now)
	switch {
	case tag == 0:
		return e, First
	case fresh:
		e.count = 1
	case e.age(now) >= apart:
		e.count = min(e.count+1, 4)
		e.touch(now)
	}
	o := g.offered.find(tag)
	switch {
	case o != nil && isRequest && o.age(now) <= offerHolds && o.count < requestsOfOffer:
		o.count++
		return e, Follows
	case e.tries >= mostTries:
		return e, First
	case o != nil:
		return e, Vouched
	}
	return e, First - Class(e.count-1)
}

// Put has the request in a place that Ask gave wait for its turn.
func (g *Gate) Put(place int32, class Class, tag uint64, now int64) {
	g.waiting[class].push(held{place: place, tag: tag, at: now})
	g.held++
}

// Waiting is how many requests wait.
func (g *Gate) Waiting() int { return g.held }

// Next takes the request whose turn it is out of its place, which is free again after [Gate.Free]. The verdict is
// [Refuse] for one that has waited in vain, and [Wait] when nobody's turn has come.
func (g *Gate) Next(now int64) (verdict Verdict, place int32) {
	if g.held == 0 {
		return Wait, 0
	}
	for class := range g.waiting {
		r := &g.waiting[class]
		if r.n > 0 && now-r.oldest().at > int64(mostWait) {
			g.held--
			return Refuse, r.pop().place
		}
	}
	if g.refill(now); g.tokens < 1 {
		return Wait, 0
	}
	g.tokens--
	class := turns[g.turn]
	g.turn = (g.turn + 1) % len(turns)
	for c := Follows; g.waiting[class].n == 0; c++ {
		class = c
	}
	g.held--
	h := g.waiting[class].pop()
	if e := g.asked.find(h.tag); e != nil {
		e.tries = min(e.tries+1, mostTries)
	}
	return Send, h.place
}

// Free gives a place back.
func (g *Gate) Free(place int32) { g.free = append(g.free, place) }

// Due is how long it takes until Next may have something, if no answer comes before.
func (g *Gate) Due(now int64) time.Duration {
	g.refill(now)
	if g.tokens >= 1 {
		return 0
	}
	return time.Duration((1 - g.tokens) / float64(g.limit.Rate) * 1e9)
}

// Answer is what a server said.
type Answer uint8

// The answers.
const (
	Other   Answer = iota // a NAK, or an ACK that gives no address
	Offered               // an OFFER
	Granted               // an ACK that gives an address, or a BOOTP reply
)

// Answered notes a reply to a client; first tells that it is the first one to its request.
func (g *Gate) Answered(tag uint64, answer Answer, first bool, now int64) {
	if first && !g.Served(tag) {
		g.refill(now)
		g.tokens = min(g.tokens+regain, float64(g.limit.Burst))
	}
	if tag == 0 {
		return
	}
	switch answer {
	case Offered:
		e, _ := g.offered.put(tag, now)
		e.count = 0
		e.touch(now)
	case Granted:
		e, _ := g.served.put(tag, now)
		e.touch(now)
	}
	if e := g.asked.find(tag); e != nil {
		e.tries = 0
	}
}

func (g *Gate) refill(now int64) {
	g.tokens = min(g.tokens+float64(now-g.at)*float64(g.limit.Rate)/1e9, float64(g.limit.Burst))
	g.at = now
}
