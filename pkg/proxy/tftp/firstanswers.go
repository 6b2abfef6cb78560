package tftp

import (
	"net/netip"
	"sync"
)

// mostUnanswered is how many first answers of one network, a /24 or an IPv6 /64, may be without an acknowledgement. A
// rack that boots has one round trip each; a flood of invented addresses makes us send no more than these.
const mostUnanswered = 256

// firstAnswers counts the first answers to boot files' requests that no client has acknowledged yet.
type firstAnswers struct {
	mu       sync.Mutex
	networks map[netip.Prefix]int
}

func networkOf(client netip.Addr) netip.Prefix {
	bits := 64
	if client.Is4() {
		bits = 24
	}
	p, _ := client.Prefix(bits) // never fails with so few bits
	return p
}

// take counts one more, which has a place until giveBack; false where there are too many already.
func (u *firstAnswers) take(client netip.Addr) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := networkOf(client)
	if u.networks[n] >= mostUnanswered {
		return false
	}
	u.count(n)
	return true
}

// takeAnyway is take for a client that is no invented one.
func (u *firstAnswers) takeAnyway(client netip.Addr) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.count(networkOf(client))
}

// count is take's; the caller holds mu.
func (u *firstAnswers) count(n netip.Prefix) {
	if u.networks == nil {
		u.networks = map[netip.Prefix]int{}
	}
	u.networks[n]++
}

// giveBack counts one less: it was acknowledged, or its transfer has ended.
func (u *firstAnswers) giveBack(client netip.Addr) {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := networkOf(client)
	if u.networks[n]--; u.networks[n] <= 0 {
		delete(u.networks, n)
	}
}
