package frame

import (
	"encoding/binary"
	"math/bits"
)

// add accumulates the ones' complement sum (RFC 1071) of b in 64 bits, eight bytes at a time. Only the last
// part of a datagram may have an odd length.
func add(sum uint64, b []byte) uint64 {
	var carry uint64
	for len(b) >= 32 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), 0)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[8:]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[16:]), carry)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b[24:]), carry)
		sum += carry
		b = b[32:]
	}
	for len(b) >= 8 {
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(b), 0)
		sum += carry
		b = b[8:]
	}
	if len(b) > 0 {
		var tail [8]byte
		copy(tail[:], b)
		sum, carry = bits.Add64(sum, binary.BigEndian.Uint64(tail[:]), 0)
		sum += carry
	}
	return sum
}

// pseudo is the sum of UDP's pseudo header: both addresses, the protocol and the UDP length.
func pseudo(addresses []byte, udpLen int) uint64 {
	sum, carry := bits.Add64(add(0, addresses), protocolUDP+uint64(udpLen), 0)
	return sum + carry
}

// finish folds a sum to 16 bits and complements it. It is zero for data that carries its right checksum.
func finish(sum uint64) uint16 {
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>32 + sum&0xffffffff
	sum = sum>>16 + sum&0xffff
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum)
}
