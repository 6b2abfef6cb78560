package relay

import "sync"

// limiter holds each client and all of them together to a rate. What is sent to this host by unicast has allowances of
// its own, so that a pod that names a machine's chaddr spends nothing of the machine's. Its memory is fixed: clients
// share a table of sets, and in a full set the client that was quiet longest is forgotten, which only gives it a fresh
// allowance.
type limiter struct {
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

// rate is an allowance: tokens come back at perSecond, up to burst. Zero is no limit.
type rate struct{ perSecond, burst float64 }

// bucket is what is left of an allowance.
type bucket struct {
	tokens float64
	at     int64 // when tokens was true, in nanoseconds
}

// account is what a client has left.
type account struct {
	tag uint64 // of the client
	bucket
	// again is for requests that the client repeats: a sender that forges its chaddr, with a new xid each time, spends
	// the allowance and not this.
	again bucket
}

// spareRate is that of again: firmware repeats a request once a second at most.
var spareRate = rate{perSecond: 2, burst: 2}

// newLimiter takes requests a second; what is not positive is no limit. A burst is what two seconds allow.
func newLimiter(client, total int) *limiter {
	allowance := func(n int) rate {
		n = max(n, 0)
		return rate{perSecond: float64(n), burst: float64(2 * n)}
	}
	l := &limiter{client: allowance(client), total: allowance(total)}
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

// repeats decides about a repeated request of a served client that allow had no allowance for.
func (l *limiter) repeats(a *arrival, now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ofClient(a, now).again.take(spareRate, now)
}

// allow decides about a request. A client that shows nothing it could be known by has no allowance of its own. Clients
// that were never served may spend half of the total's burst, so that they leave the others something.
func (l *limiter) allow(a *arrival, now int64) Drop {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client.perSecond > 0 && a.client != 0 && !l.ofClient(a, now).take(l.client, now) {
		return ClientLimit
	}
	all, reserve := &l.all, 0.
	if a.listener == unicast {
		all = &l.sent
	}
	if !a.served {
		reserve = l.total.burst / 2
	}
	if l.total.perSecond > 0 && !all.takeAbove(reserve, l.total, now) {
		return TotalLimit
	}
	return None
}

// ofClient finds the account of a client, or makes one. Clients that were served have sets of their own: the invented
// ones cannot have their accounts forgotten. The caller holds mu.
func (l *limiter) ofClient(a *arrival, now int64) *account {
	sets := &l.newcomers
	if a.served {
		sets = &l.served
	}
	set := &sets[a.client%limitSets]
	oldest := &set[0]
	for i := range set {
		b := &set[i]
		if b.tag == a.client {
			return b
		}
		if b.at < oldest.at {
			oldest = b
		}
	}
	*oldest = account{
		tag: a.client, bucket: bucket{tokens: l.client.burst, at: now}, again: bucket{tokens: spareRate.burst, at: now},
	}
	return oldest
}
