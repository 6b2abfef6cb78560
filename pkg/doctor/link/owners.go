package link

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/frame"
)

// questions is how often an address is asked for: an owner answers each time.
const questions = 2

// Owner is a station that says that it has an address.
type Owner struct {
	MAC     frame.MAC
	Answers int
}

// Owners asks the link who has the addresses, [questions] times with a pause between, and waits that long for the last
// answers. It asks as a station without an address does (RFC 5227 section 2.1.1), so that
// nobody learns anything about this one. Whoever answers all questions has the address.
func (l *Link) Owners(ctx context.Context, addrs []netip.Addr, pause time.Duration) map[netip.Addr][]Owner {
	var mu sync.Mutex
	found := map[netip.Addr][]Owner{}
	defer l.Tap(func(in Received) {
		addr, mac, ok := claim(in)
		if !ok || mac == l.MAC || !slices.Contains(addrs, addr) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		at := slices.IndexFunc(found[addr], func(o Owner) bool { return o.MAC == mac })
		if at < 0 {
			at = len(found[addr])
			found[addr] = append(found[addr], Owner{MAC: mac})
		}
		found[addr][at].Answers++
	})()
	for range questions {
		for _, addr := range addrs {
			_ = l.Send(l.question(addr)) // an interface that fails now is heard of by the silence
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	mu.Lock()
	defer mu.Unlock()
	return found
}

func (l *Link) question(addr netip.Addr) []byte {
	return frame.AppendARP(nil, l.MAC, frame.Broadcast, frame.ARP{
		Operation: frame.ARPRequest, SenderMAC: l.MAC, TargetIP: addr.As4(),
	})
}

// claim is an answer to a question of Owners.
func claim(in Received) (addr netip.Addr, mac frame.MAC, ok bool) {
	if in.VLAN != 0 {
		return addr, mac, false
	}
	if m, _, ok := frame.ParseARP(in.Frame); ok {
		return netip.AddrFrom4(m.SenderIP), m.SenderMAC, m.Operation == frame.ARPReply
	}
	return addr, mac, false
}
