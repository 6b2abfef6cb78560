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
func (f *firstAnswers) take(client netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := networkOf(client)
	if f.networks[n] >= mostUnanswered {
		return false
	}
	f.count(n)
	return true
}

// takeAnyway is take for a client that is no invented one.
func (f *firstAnswers) takeAnyway(client netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count(networkOf(client))
}

// count is take's; the caller holds mu.
func (f *firstAnswers) count(n netip.Prefix) {
	if f.networks == nil {
		f.networks = map[netip.Prefix]int{}
	}
	f.networks[n]++
}

// giveBack counts one less: it was acknowledged, or its transfer has ended.
func (f *firstAnswers) giveBack(client netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := networkOf(client)
	if f.networks[n]--; f.networks[n] <= 0 {
		delete(f.networks, n)
	}
}
