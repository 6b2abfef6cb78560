package datagram

import (
	"encoding/binary"
	"hash/maphash"
	"time"
)

// knocks remembers the clients that a full table has turned away. Firmware sends a request again after some seconds, a
// flood of invented clients does not: so that a client that knocks for the second time is let in before all others.
//
// It is two Bloom filters, one for this period and one for the period before. A client that is taken for another one is
// let in at once, which does no harm. The memory is taken with the first knock.
type knocks struct {
	seed  maphash.Seed
	bits  [2][]uint64
	began time.Time
}

const (
	knockPeriod = 8 * time.Second // a knock is remembered for one to two periods
	knockBits   = 1 << 21
	knockHashes = 4
)

// again tells whether the client has knocked before, and remembers that it has now.
func (k *knocks) again(f flow, now time.Time) bool {
	switch since := now.Sub(k.began); {
	case k.bits[0] == nil || since >= 2*knockPeriod:
		k.bits = [2][]uint64{make([]uint64, knockBits/64), make([]uint64, knockBits/64)}
		k.seed = maphash.MakeSeed()
		k.began = now
	case since >= knockPeriod:
		k.bits[0], k.bits[1] = k.bits[1], k.bits[0]
		clear(k.bits[0])
		k.began = k.began.Add(knockPeriod)
	}
	var key [38]byte
	client, asked := f.client.Addr().As16(), [16]byte{}
	if f.asked.IsValid() {
		asked = f.asked.As16()
	}
	copy(key[:], client[:])
	copy(key[16:], asked[:])
	binary.NativeEndian.PutUint16(key[32:], f.client.Port())
	binary.NativeEndian.PutUint32(key[34:], f.client.Zone)
	hash := maphash.Bytes(k.seed, key[:])
	inBoth := [2]bool{true, true}
	for i := range knockHashes {
		at := (uint32(hash) + uint32(i)*uint32(hash>>32|1)) % knockBits
		word, bit := at/64, uint64(1)<<(at%64)
		for j := range inBoth {
			inBoth[j] = inBoth[j] && k.bits[j][word]&bit != 0
		}
		k.bits[0][word] |= bit
	}
	return inBoth[0] || inBoth[1]
}
