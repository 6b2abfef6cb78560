package relay

import (
	"hash/maphash"
	"sync"
)

// limiter holds each client and all of them together to a rate. What is sent to this host by unicast has allowances of
// its own, so that a pod that names a machine's chaddr spends nothing of the machine's. Its memory is fixed: clients
// share a table of sets, and in a full set the client that was quiet longest is forgotten, which only gives it a fresh
// allowance.
type limiter struct {
	mu     sync.Mutex
	seed   maphash.Seed
	client rate
	total  rate
	all    bucket // of the listeners
	sent   bucket // of unicasts
	sets   [limitSets][limitWays]bucket
}

const (
	limitSets = 2048
	limitWays = 4
)

// rate is an allowance: tokens come back at perSecond, up to burst. Zero is no limit.
type rate struct{ perSecond, burst float64 }

// bucket is what is left of an allowance.
type bucket struct {
	tag    uint64 // of the client
	tokens float64
	at     int64 // when tokens was true, in nanoseconds
}

// newLimiter takes requests a second; what is not positive is no limit. A burst is what two seconds allow.
func newLimiter(client, total int) *limiter {
	allowance := func(n int) rate {
		n = max(n, 0)
		return rate{perSecond: float64(n), burst: float64(2 * n)}
	}
	l := &limiter{seed: maphash.MakeSeed(), client: allowance(client), total: allowance(total)}
	l.all.tokens, l.sent.tokens = l.total.burst, l.total.burst
	return l
}

// take spends a token, if there is one.
func (b *bucket) take(r rate, now int64) bool {
	b.tokens = min(r.burst, b.tokens+float64(now-b.at)*r.perSecond/1e9)
	b.at = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// allow decides about a request. A client without a hardware address (InfiniBand) has no allowance of its own.
func (l *limiter) allow(k key, a *arrival, now int64) Drop {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client.perSecond > 0 && k.hlen > 0 && !l.ofClient(k, a, now).take(l.client, now) {
		return ClientLimit
	}
	all := &l.all
	if a.listener == unicast {
		all = &l.sent
	}
	if l.total.perSecond > 0 && !all.take(l.total, now) {
		return TotalLimit
	}
	return None
}

// client is who has an allowance: a chaddr on a listener, or one that a sender of unicasts names.
type client struct {
	chaddr   [16]byte
	listener int16
	sender   [4]byte
}

// ofClient finds the bucket of a client, or makes one. The caller holds mu.
func (l *limiter) ofClient(k key, a *arrival, now int64) *bucket {
	who := client{chaddr: k.chaddr, listener: a.listener}
	if a.listener == unicast {
		who.sender = a.source.ip
	}
	tag := maphash.Comparable(l.seed, who)
	set := &l.sets[tag%limitSets]
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
	*oldest = bucket{tag: tag, tokens: l.client.burst, at: now}
	return oldest
}
