package relay

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// A token is an origin under a message authentication code, in what a server repeats. It makes a reply recognisable to
// a replica, or a process, that never saw the request. Each family has its own form (v4token.go, v6token.go).
const tokenCode = 8 // bytes of the HMAC-SHA-256 that are sent

// signer makes and checks tokens. It is for one goroutine.
type signer struct {
	hash  hash.Hash
	input [128]byte
	sum   [sha256.Size]byte
}

// newSigner returns nil where there is no key.
func newSigner(secret []byte) *signer {
	if len(secret) == 0 {
		return nil
	}
	return &signer{hash: hmac.New(sha256.New, secret)}
}

// code authenticates what is in input, and more. The result is valid until the next call.
func (s *signer) code(input, more []byte) []byte {
	s.hash.Reset()
	s.hash.Write(input)
	s.hash.Write(more)
	return s.hash.Sum(s.sum[:0])[:tokenCode]
}

// recent tells whether a token's time, at the begin of b, is within the time that requests are remembered for, in
// seconds. Clocks of replicas may differ a little, so the age may be negative.
func recent(b []byte, unix, maxAge uint32) bool {
	age := int32(unix - binary.BigEndian.Uint32(b))
	return age <= int32(maxAge) && age >= -int32(maxAge)
}

// maxAge is for how many seconds a token is valid.
func (c *Config) maxAge() uint32 { return uint32(c.PendingExpiry.Seconds()) + 1 }
