package tftp

import "net/netip"

// mostUnanswered is how many first answers of one network, a /24 or an IPv6 /64, may be without an acknowledgement. A
// rack that boots has one round trip each; a flood of invented addresses makes us send no more than these.
const mostUnanswered = 256

// firstAnswers counts the first answers to boot files' requests that no client has acknowledged yet. Only the worker
// calls it.
type firstAnswers struct {
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
	if f.networks[networkOf(client)] >= mostUnanswered {
		return false
	}
	f.takeAnyway(client)
	return true
}

// takeAnyway is take for a client that is no invented one.
func (f *firstAnswers) takeAnyway(client netip.Addr) {
	if f.networks == nil {
		f.networks = map[netip.Prefix]int{}
	}
	f.networks[networkOf(client)]++
}

// giveBack counts one less: it was acknowledged, or its transfer has ended.
func (f *firstAnswers) giveBack(client netip.Addr) {
	n := networkOf(client)
	if f.networks[n]--; f.networks[n] <= 0 {
		delete(f.networks, n)
	}
}
