package jwt

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"golang.org/x/time/rate"

	"github.com/tinkerbell/stack/internal/testwait"
)

// TestAttacks is the table of what has been tried on others (RFC 8725, and the CVEs behind it).
func TestAttacks(t *testing.T) {
	i := newIssuer(t)
	rsaKey, ecKey, stranger := newKey(t, "rsa", "RS256"), newKey(t, "ec", "ES256"), newKey(t, "rsa", "RS256")
	secret, weak := newKey(t, "hmac", "HS256"), newKey(t, "old", "RS256")
	weak.Use = "enc"
	i.set(rsaKey, ecKey, secret, weak)
	good := goodClaims(i)
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	payload := strings.Split(sign(t, rsaKey, good, nil), ".")[1]
	pkix, err := x509.MarshalPKIXPublicKey(publicOf(rsaKey))
	if err != nil {
		t.Fatal(err)
	}
	hmacToken := func(header string, key []byte) string {
		input := part(header) + "." + payload
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(input))
		return input + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	token := sign(t, rsaKey, good, nil)
	parts := strings.Split(token, ".")
	past, future := time.Now().Add(-time.Hour).Unix(), time.Now().Add(time.Hour).Unix()
	hs := func(k []byte) string { return hmacToken(`{"alg":"HS256","kid":"rsa","typ":"JWT"}`, k) }
	embedded := map[jose.HeaderKey]any{"jwk": stranger.Public(), "jku": i.URL + "/evil", "x5u": i.URL + "/evil"}
	// raw signs any texts, as an issuer with a fault would.
	raw := func(header, claims string) string {
		sum := sha256.Sum256([]byte(part(header) + "." + part(claims)))
		signature, err := rsa.SignPKCS1v15(nil, rsaKey.Key.(*rsa.PrivateKey), crypto.SHA256, sum[:])
		if err != nil {
			t.Fatal(err)
		}
		return part(header) + "." + part(claims) + "." + part(string(signature))
	}
	rs, es := `{"alg":"RS256","kid":"rsa","typ":"JWT"}`, `{"alg":"ES256","kid":"ec","typ":"JWT"}`
	now := fmt.Sprintf(`"iss":%q,"aud":"tink"`, i.URL)
	order := publicOf(ecKey).(*ecdsa.PublicKey).Params().N.Bytes()
	zeros := make([]byte, 32)
	chain := map[jose.HeaderKey]any{"x5c": []string{base64.StdEncoding.EncodeToString(pkix)}}
	ecToken := sign(t, ecKey, good, nil)
	ecParts := strings.Split(ecToken, ".")
	pair, err := base64.RawURLEncoding.DecodeString(ecParts[2])
	if err != nil {
		t.Fatal(err)
	}
	// by puts r and s under the header and claims of ecToken.
	by := func(rs ...[]byte) string {
		return ecParts[0] + "." + ecParts[1] + "." + part(string(slices.Concat(rs...)))
	}
	tests := map[string]struct {
		token string
		want  outcome
	}{
		"good":                     {token, passed},
		"ECDSA":                    {by(pair), passed},
		"ECDSA, r and s are 0":     {by(zeros, zeros), badSignature},
		"ECDSA, r is 0":            {by(zeros, pair[32:]), badSignature},
		"ECDSA, s is 0":            {by(pair[:32], zeros), badSignature},
		"ECDSA, r and s the order": {by(order, order), badSignature},
		"ECDSA, r is the order":    {by(order, pair[32:]), badSignature},
		"ECDSA, s and r exchanged": {by(pair[32:], pair[:32]), badSignature},
		"ECDSA, longer":            {by(zeros, pair, zeros), badSignature},
		"ECDSA, shorter":           {by(pair[:63]), badSignature},
		"ECDSA, nothing":           {by(), badSignature},
		"ECDSA header, RSA bytes":  {part(es) + "." + payload + "." + parts[2], badSignature},
		"exp twice, the last past": {raw(rs, `{"exp":9999999999,"exp":1,`+now+`}`), expired},
		"exp twice, the last good": {raw(rs, `{"exp":1,"exp":9999999999,`+now+`}`), passed}, // RFC 7519, 4: the last counts
		"exp in another case":      {raw(rs, `{"exp":1,"EXP":9999999999,`+now+`}`), expired},
		"aud in another case":      {raw(rs, `{"exp":9999999999,"AUD":"tink","aud":"x","iss":"`+i.URL+`"}`), badAudience},
		"alg twice, the last none": {part(`{"alg":"RS256","kid":"rsa","alg":"none"}`) + "." + payload + ".", badSignature},
		"alg in another case":      {part(`{"alg":"none","Alg":"RS256","kid":"rsa"}`) + "." + payload + "." + parts[2], badSignature},
		"lower case alg":           {part(`{"alg":"rs256","kid":"rsa"}`) + "." + payload + "." + parts[2], malformed},
		"a list of algs":           {part(`{"alg":["RS256"],"kid":"rsa"}`) + "." + payload + "." + parts[2], malformed},
		"null for claims":          {raw(rs, `null`), malformed},
		"null for a header":        {part(`null`) + "." + payload + "." + parts[2], malformed},
		"claims with more behind":  {raw(rs, `{"exp":9999999999,`+now+`}{"exp":1}`), malformed},
		"deep claims":              {raw(rs, strings.Repeat("[", 9000)), malformed},
		"deep header":              {part(strings.Repeat(`{"a":`, 1900)) + "." + payload + "." + parts[2], malformed},
		"long kid":                 {part(`{"alg":"RS256","kid":"`+strings.Repeat("k", 8000)+`"}`) + "." + payload + "." + parts[2], unknownKey},
		"kid of a query":           {part(`{"alg":"RS256","kid":"x' UNION SELECT 'k"}`) + "." + payload + "." + parts[2], unknownKey},
		"kid with a NUL":           {part(`{"alg":"RS256","kid":"rsa\u0000"}`) + "." + payload + "." + parts[2], unknownKey},
		"chain in the header":      {sign(t, stranger, good, chain), badSignature},
		"compressed, so it says":   {part(`{"alg":"RS256","kid":"rsa","zip":"DEF"}`) + "." + payload + "." + parts[2], badSignature},
		"JSON, two signatures": {
			`{"payload":"` + payload + `","signatures":[{"protected":"` + parts[0] + `","signature":"` + parts[2] +
				`"},{"protected":"` + part(es) + `","signature":"x"}]}`,
			malformed,
		},
		"JSON, flattened": {`{"payload":"` + payload + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`, malformed},
		"none":            {part(`{"alg":"none","typ":"JWT"}`) + "." + payload + ".", badSignature},
		"None":            {part(`{"alg":"None","typ":"JWT"}`) + "." + payload + ".", malformed},
		"none with a signature": {
			part(`{"alg":"none","kid":"rsa"}`) + "." + payload + "." + parts[2],
			badSignature,
		},
		"no alg": {part(`{"kid":"rsa"}`) + "." + payload + "." + parts[2], malformed},
		"HMAC with the public key, PEM": {
			hs(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pkix})),
			badSignature,
		},
		"HMAC with the public key, DER": {hs(pkix), badSignature},
		"HMAC with the modulus":         {hs(publicOf(rsaKey).(*rsa.PublicKey).N.Bytes()), badSignature},
		"HMAC with a listed secret":     {sign(t, secret, good, nil), badSignature},
		"HMAC with nothing":             {hs(nil), badSignature},
		"another's key, our kid":        {sign(t, stranger, good, nil), badSignature},
		"key in the header":             {sign(t, stranger, good, embedded), badSignature},
		"key for another use":           {sign(t, weak, good, nil), unknownKey},
		"another kind of key":           {sign(t, ecKey, good, nil), passed},
		"RSA key, ECDSA algorithm": {
			part(`{"alg":"ES256","kid":"rsa","typ":"JWT"}`) + "." + payload + "." + parts[2],
			badHeader,
		},
		"another RSA algorithm": {
			part(`{"alg":"RS512","kid":"rsa","typ":"JWT"}`) + "." + payload + "." + parts[2],
			badSignature,
		},
		"PS256 by an RS256 key": {
			part(`{"alg":"PS256","kid":"rsa","typ":"JWT"}`) + "." + payload + "." + parts[2],
			badHeader,
		},
		"kid as a path": {
			part(`{"alg":"RS256","kid":"../../dev/null"}`) + "." + payload + "." + parts[2],
			unknownKey,
		},
		"kid as a number": {part(`{"alg":"RS256","kid":1}`) + "." + payload + "." + parts[2], badHeader},
		"critical extension": {
			part(`{"alg":"RS256","kid":"rsa","crit":["b64"],"b64":false}`) + "." + payload + "." + parts[2],
			badHeader,
		},
		"another type": {sign(t, rsaKey, good, map[jose.HeaderKey]any{"typ": "logout+jwt"}), badHeader},
		"an access token's type": {
			sign(t, rsaKey, good, map[jose.HeaderKey]any{"typ": "application/AT+JWT"}),
			passed,
		},
		"changed claims": {
			parts[0] + "." + part(`{"iss":"`+i.URL+`","aud":"tink","exp":9999999999,"sub":"root"}`) + "." + parts[2],
			badSignature,
		},
		"changed signature": {parts[0] + "." + parts[1] + "." + part("x") + parts[2][2:], badSignature},
		"empty signature":   {parts[0] + "." + parts[1] + ".", badSignature},
		"ECDSA signature of zeros": {
			part(`{"alg":"ES256","kid":"ec","typ":"JWT"}`) + "." + payload + "." + part(strings.Repeat("\x00", 64)),
			badSignature,
		},
		"two parts":                   {parts[0] + "." + parts[1], malformed},
		"four parts":                  {token + ".x", malformed},
		"five parts, as if encrypted": {token + ".x.y", malformed},
		"not base64url":               {parts[0] + "." + parts[1] + "!." + parts[2], malformed},
		"padded":                      {parts[0] + "." + parts[1] + "." + parts[2] + "==", malformed},
		"JSON form":                   {`{"payload":"x"}`, malformed},
		"expired":                     {sign(t, rsaKey, good.with("exp", past), nil), expired},
		"expired within the leeway":   {sign(t, rsaKey, good.with("exp", time.Now().Unix()-10), nil), passed},
		"no exp":                      {sign(t, rsaKey, good.with("exp", nil), nil), malformed},
		"exp is text":                 {sign(t, rsaKey, good.with("exp", "9999999999"), nil), malformed},
		"exp is beyond all":           {sign(t, rsaKey, good.with("exp", 1e300), nil), expired},
		"not yet":                     {sign(t, rsaKey, good.with("nbf", future), nil), early},
		"another issuer":              {sign(t, rsaKey, good.with("iss", i.URL+"/"), nil), badIssuer},
		"no issuer":                   {sign(t, rsaKey, good.with("iss", nil), nil), malformed},
		"another audience":            {sign(t, rsaKey, good.with("aud", "tinker"), nil), badAudience},
		"no audience":                 {sign(t, rsaKey, good.with("aud", nil), nil), malformed},
		"audience is an object":       {sign(t, rsaKey, good.with("aud", map[string]any{"tink": 1}), nil), malformed},
		"a list for claims":           {parts[0] + "." + part(`[]`) + "." + parts[2], malformed},
		"too long":                    {sign(t, rsaKey, good.with("x", strings.Repeat("x", maxToken)), nil), malformed},
		"nothing":                     {"", malformed},
		"a space":                     {token + " " + token, malformed},
	}
	v := start(t, configOf(i), Options{})
	testwait.Until(t, "fetching keys", func() bool { return v.Ready() == nil })
	v.source.mu.Lock()
	v.source.budget = rate.NewLimiter(rate.Inf, 0)
	v.source.mu.Unlock()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, why := bearer(bearing(test.token))
			if why == passed {
				_, why = v.check(t.Context(), got)
			}
			if why != test.want {
				t.Errorf("got %v, want %v", why, test.want)
			}
			code := ask(v.Wrap(echo), bearing(test.token)).Code
			if (code == http.StatusOK) != (test.want == passed) {
				t.Errorf("got %d", code)
			}
		})
	}
}
