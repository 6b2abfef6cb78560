// Package admit decides which DHCP requests go to the servers at once, which wait and which are refused, when more
// machines ask than the servers answer.
//
// It identifies a client by a tag, which is a keyed hash of the client's addresses and identifiers. Times are
// nanoseconds of the caller's clock. The package does no I/O and starts no goroutine: a [Gate] decides, a [Queue] keeps
// the bytes of waiting requests and hands them to the caller, a [Limiter] counts. All memory has a fixed size.
//
// docs/design/decisions.md has the reasons for these decisions, and the attacks that they do not stop.
package admit

import "time"

// Verdict is the decision about a request.
type Verdict uint8

// The verdicts.
const (
	Send   Verdict = iota // to the servers, now
	Wait                  // in the place that [Gate.Ask] gave, until [Gate.Next] returns that place
	Refuse                // the places of its class are taken
)

// Class orders the clients that were never served. A lower class is sent first.
type Class uint8

// The classes.
const (
	Follows     Class = iota // a REQUEST after an OFFER that went through here
	Vouched                  // the client was offered something before, as by proxyDHCP, or has asked four times or more
	AskedThrice              // the client has asked three times
	AskedTwice               // twice
	First                    // once; or the servers have left several of its requests unanswered
	Classes
)

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
	// mostWait is how long a request waits. By then the client has repeated it, or will soon.
	mostWait = time.Second
)

// places is how many requests of each class may wait.
var places = [Classes]int{Follows: 256, Vouched: 128, AskedThrice: 128, AskedTwice: 256, First: 256}

// Places is how many requests may wait in all: places are numbered from 0 on.
const Places = 1024

// schedule is the order in which the classes are served while requests of several wait (weighted round robin). A class
// without a waiting request leaves its share to the lowest class that has one.
var schedule = [...]Class{Follows, Vouched, Follows, AskedThrice, Follows, AskedTwice, Follows, First}

// NewcomerBurst is how many requests of machines that were never served may be unanswered before more requests wait:
// two thousand machines may be switched on at once.
const NewcomerBurst = 2048

// Limit bounds the requests to the servers from clients that were never served.
type Limit struct {
	// Rate is how many requests a second are sent beyond those that are answered; 0 or less: no limit.
	Rate int
	// Burst is how many requests may be unanswered before Rate applies.
	Burst int
}

// regain is how many tokens an answer gives back: the one that its request took, and an eighth more. By that eighth the
// rate rises to the rate of the servers, although some requests are lost, or come from machines that they do not know.
const regain = 1 + 1./8

// Gate decides about the requests of one VLAN. It is for one goroutine at a time. A request that got a place has to
// be put there before the gate is asked about the next one.
type Gate struct {
	limit   Limit
	tokens  float64
	at      int64 // the time of tokens
	served  table // clients that the servers gave an address
	offered table // clients that were offered an address; count is the number of REQUESTs since then
	asked   table // clients that were never answered; count is the number of their requests, tries that of those sent
	free    []int32
	waiting [Classes]ring
	queued  int // in all rings
	step    int // of the schedule
}

// Sizes of the tables: clients, in sets of [ways].
const (
	servedClients  = 16384
	offeredClients = 16384
	askedClients   = 524288 // 26 s of 20,000 machines a second: firmware waits 4 s and then 8 s until it asks again
)

// NewGate makes a gate. Its memory is 4.3 MiB; a page of it becomes resident when a client's entry there is used.
func NewGate(limit Limit) *Gate {
	g := &Gate{
		limit: limit, tokens: float64(limit.Burst),
		served: newTable(servedClients), offered: newTable(offeredClients), asked: newTable(askedClients),
	}
	for place := range int32(Places) {
		g.free = append(g.free, place)
	}
	for class := range g.waiting {
		g.waiting[class].requests = make([]queued, places[class])
	}
	return g
}

// Served tells whether the servers gave a client an address before. The tag 0 stands for all clients without an
// identity, which are always new.
func (g *Gate) Served(tag uint64) bool { return tag != 0 && g.served.find(tag) != nil }

// NoteRepeat notes a tag, and reports whether it was noted half a second ago or earlier. The caller asks about requests
// that are over their client's limit.
func (g *Gate) NoteRepeat(tag uint64, now int64) bool {
	e, isNew := g.asked.put(tag, now)
	if isNew || e.age(now) < apart {
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
	if g.queued == 0 && g.tokens >= 1 {
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

// class notes a request and returns the class of its client.
func (g *Gate) class(tag uint64, isRequest bool, now int64) (*entry, Class) {
	e, isNew := g.asked.put(tag, now)
	switch {
	case tag == 0:
		return e, First
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
		return e, Follows
	case e.tries >= mostTries:
		return e, First
	case o != nil:
		return e, Vouched
	}
	return e, [...]Class{First, AskedTwice, AskedThrice, Vouched}[e.count-1]
}

// Put queues the request in a place that Ask gave.
func (g *Gate) Put(place int32, class Class, tag uint64, now int64) {
	g.waiting[class].push(queued{place: place, tag: tag, at: now})
	g.queued++
}

// Waiting is how many requests wait.
func (g *Gate) Waiting() int { return g.queued }

// Next returns the place of the next request, which is free again after [Gate.Free]. The verdict is [Send], [Refuse]
// for a request that has waited too long, or [Wait] when no request may be sent now.
func (g *Gate) Next(now int64) (verdict Verdict, place int32) {
	if g.queued == 0 {
		return Wait, 0
	}
	for class := range g.waiting {
		r := &g.waiting[class]
		if r.n > 0 && now-r.oldest().at > int64(mostWait) {
			g.queued--
			return Refuse, r.pop().place
		}
	}
	g.refill(now)
	if g.tokens < 1 {
		return Wait, 0
	}
	g.tokens--
	class := schedule[g.step]
	g.step = (g.step + 1) % len(schedule)
	// Without a request the class leaves its share to the lowest one that has one.
	for c := Follows; g.waiting[class].n == 0; c++ {
		class = c
	}
	g.queued--
	h := g.waiting[class].pop()
	if e := g.asked.find(h.tag); e != nil {
		e.tries = min(e.tries+1, mostTries)
	}
	return Send, h.place
}

// Free gives a place back.
func (g *Gate) Free(place int32) { g.free = append(g.free, place) }

// Due is the time until Next may return a request, if no answer comes before.
func (g *Gate) Due(now int64) time.Duration {
	g.refill(now)
	if g.tokens >= 1 {
		return 0
	}
	return time.Duration((1 - g.tokens) / float64(g.limit.Rate) * 1e9)
}

// Answer is the kind of a server's reply.
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
