package admit

import "sync"

// Limiter holds each client, and all clients together, to a rate. Requests that are sent to this host by unicast have
// allowances of their own, so that a pod that names a machine's address spends none of the machine's allowance. The
// memory has a fixed size: clients share a table of sets. In a full set the client that asked longest ago is forgotten,
// and begins with a full allowance if it asks again.
type Limiter struct {
	mu     sync.Mutex
	client rate
	total  rate
	all    bucket // of the listeners
	sent   bucket // of unicasts
	// By client.
	served, newcomers [limitSets][limitWays]account
}

const (
	limitSets = 2048
	limitWays = 4
)

// rate is the rate of a token bucket: it regains perSecond tokens, up to burst. Zero is no limit.
type rate struct{ perSecond, burst float64 }

// bucket is a token bucket.
type bucket struct {
	tokens float64
	at     int64 // the time of tokens, in nanoseconds
}

// account is a client's token buckets.
type account struct {
	tag uint64 // of the client
	bucket
	// again is for requests that the client repeats. A sender that forges the client's chaddr uses a new xid each time,
	// so it empties the other bucket and not this one.
	again bucket
}

// spareRate is that of again: firmware repeats a request once a second at most.
var spareRate = rate{perSecond: 2, burst: 2}

// NewLimiter takes requests a second; zero or less is no limit. A burst has the tokens of two seconds.
func NewLimiter(client, total int) *Limiter {
	allowance := func(n int) rate {
		n = max(n, 0)
		return rate{perSecond: float64(n), burst: float64(2 * n)}
	}
	l := &Limiter{client: allowance(client), total: allowance(total)}
	l.all.tokens, l.sent.tokens = l.total.burst, l.total.burst
	return l
}

// take spends a token, if there is one.
func (b *bucket) take(r rate, now int64) bool { return b.takeAbove(0, r, now) }

// takeAbove spends a token, if there is one above a reserve.
func (b *bucket) takeAbove(reserve float64, r rate, now int64) bool {
	b.tokens = min(r.burst, b.tokens+float64(now-b.at)*r.perSecond/1e9)
	b.at = now
	if b.tokens < 1+reserve {
		return false
	}
	b.tokens--
	return true
}

// Repeats decides about a repeated request of a served client that Allow refused.
func (l *Limiter) Repeats(a *Asker, served bool, now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ofClient(a.Tag, served, now).again.take(spareRate, now)
}

// Allow decides about a request. A client without an identity has no limit of its own; the request of a client with two
// names needs a token of each. Clients that were never served may use half of the total's burst, so that the other half
// is left to served clients.
func (l *Limiter) Allow(a *Asker, served bool, now int64) Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, tag := range [...]uint64{a.Tag, a.Also} {
		if l.client.perSecond > 0 && tag != 0 && !l.ofClient(tag, served, now).take(l.client, now) {
			return Client
		}
	}
	all, reserve := &l.all, 0.
	if a.Unicast {
		all = &l.sent
	}
	if !served {
		reserve = l.total.burst / 2
	}
	if l.total.perSecond > 0 && !all.takeAbove(reserve, l.total, now) {
		return Total
	}
	return Admitted
}

// ofClient finds the account of a client, or makes one. Clients that were served have sets of their own, so that a
// flood of invented clients does not push their accounts out. The caller holds mu.
func (l *Limiter) ofClient(tag uint64, served bool, now int64) *account {
	sets := &l.newcomers
	if served {
		sets = &l.served
	}
	set := &sets[tag%limitSets]
	oldest := &set[0]
	for i := range set {
		b := &set[i]
		if b.tag == tag {
			return b
		}
		if b.at < oldest.at {
			oldest = b
		}
	}
	*oldest = account{
		tag: tag, bucket: bucket{tokens: l.client.burst, at: now}, again: bucket{tokens: spareRate.burst, at: now},
	}
	return oldest
}
