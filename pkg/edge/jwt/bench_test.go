package jwt

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"testing"

	"github.com/tinkerbell/stack/internal/testwait"
)

// BenchmarkCheck is what "make bench-edge" reports for ES256: a token by a key that is known, and what crypto's verifying of one signature costs by itself.
func BenchmarkCheck(b *testing.B) {
	i := newIssuer(b)
	for _, a := range []string{"ES256", "RS256", "EdDSA"} {
		b.Run(a, func(b *testing.B) {
			k := newKey(b, a, a)
			i.set(k)
			c := configOf(i)
			c.Forward = map[string]string{"X-Auth-Subject": "sub"}
			v := start(b, c, Options{})
			testwait.Until(b, "fetching keys", func() bool { return v.Ready() == nil })
			token := sign(b, k, goodClaims(i), nil)
			b.Run("new", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, why := v.check(b.Context(), token); why != passed {
						b.Fatal(why)
					}
				}
			})
			b.Run("signature", func(b *testing.B) {
				verify := alone(b, k.Key.(crypto.Signer))
				b.ReportAllocs()
				for b.Loop() {
					if !verify() {
						b.Fatal("the signature is wrong")
					}
				}
			})
		})
	}
}

// alone is the verifying of one signature, and nothing else.
func alone(b *testing.B, key crypto.Signer) func() bool {
	b.Helper()
	digest := sha256.Sum256([]byte("header.claims"))
	message, hash := digest[:], crypto.SHA256
	if _, ok := key.(ed25519.PrivateKey); ok {
		hash = 0
	}
	signature, err := key.Sign(rand.Reader, message, hash)
	if err != nil {
		b.Fatal(err)
	}
	switch public := key.Public().(type) {
	case *ecdsa.PublicKey:
		return func() bool { return ecdsa.VerifyASN1(public, message, signature) }
	case *rsa.PublicKey:
		return func() bool { return rsa.VerifyPKCS1v15(public, hash, message, signature) == nil }
	case ed25519.PublicKey:
		return func() bool { return ed25519.Verify(public, message, signature) }
	default:
		b.Fatalf("a key of type %T", public)
		return nil
	}
}
