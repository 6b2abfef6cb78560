package datagram

import (
	"encoding/binary"
	"hash/maphash"
	"time"
)

// refusedClients remembers the clients that a full table has refused. Firmware repeats a request after some seconds, a
// flood of invented clients does not: a client that asks for the second time gets a place before all others.
//
// It has two Bloom filters, one for this period and one for the period before. A client that is taken for another one
// gets a place at once, which does no harm. The memory is made with the first client.
type refusedClients struct {
	seed  maphash.Seed
	bits  [2][]uint64
	began time.Time
}

const (
	filterPeriod = 8 * time.Second // a client is remembered for one to two periods
	filterBits   = 1 << 21
	filterHashes = 4
)

// note remembers that the client was refused, and reports whether it had been before.
func (t *refusedClients) note(s sessionKey, now time.Time) (before bool) {
	switch since := now.Sub(t.began); {
	case t.bits[0] == nil || since >= 2*filterPeriod:
		t.bits = [2][]uint64{make([]uint64, filterBits/64), make([]uint64, filterBits/64)}
		t.seed = maphash.MakeSeed()
		t.began = now
	case since >= filterPeriod:
		t.bits[0], t.bits[1] = t.bits[1], t.bits[0]
		clear(t.bits[0])
		t.began = t.began.Add(filterPeriod)
	}
	var key [38]byte
	client, asked := s.client.Addr().As16(), [16]byte{}
	if s.asked.IsValid() {
		asked = s.asked.As16()
	}
	copy(key[:], client[:])
	copy(key[16:], asked[:])
	binary.NativeEndian.PutUint16(key[32:], s.client.Port())
	binary.NativeEndian.PutUint32(key[34:], s.client.Zone)
	hash := maphash.Bytes(t.seed, key[:])
	inBoth := [2]bool{true, true}
	for i := range filterHashes {
		at := (uint32(hash) + uint32(i)*uint32(hash>>32|1)) % filterBits
		word, bit := at/64, uint64(1)<<(at%64)
		for j := range inBoth {
			inBoth[j] = inBoth[j] && t.bits[j][word]&bit != 0
		}
		t.bits[0][word] |= bit
	}
	return inBoth[0] || inBoth[1]
}
