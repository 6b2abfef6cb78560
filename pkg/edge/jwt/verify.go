package jwt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"github.com/tinkerbell/stack/pkg/edge/reply"
)

// Options are the parts of a [Verifier] besides its settings; each may be nil.
type Options struct {
	Route   string
	Logger  *slog.Logger
	Metrics *Metrics
}

// Verifier checks the tokens of one route. It is a task: Run keeps the keys fresh.
type Verifier struct {
	config  Config
	source  *source
	parser  *jwt.Parser
	metrics *routeMetrics
	wanted  []string          // claims that must be there, sorted
	forward map[string]string // claims by the headers that tell them, which must not come from outside
}

// maxToken is the longest token, in bytes; a header of net/http may be longer.
const maxToken = 16 << 10

// New makes a verifier. It refuses everything until Run has fetched keys.
func New(c Config, o Options) (*Verifier, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("failed to set up tokens: %w", err)
	}
	c = c.withDefaults()
	log := cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	v := &Verifier{config: c, metrics: o.Metrics.route(o.Route), forward: map[string]string{}}
	v.source = newSource(c, log.With("route", o.Route), v.metrics)
	options := []jwt.ParserOption{
		jwt.WithValidMethods(c.Algorithms), jwt.WithIssuer(c.Issuer), jwt.WithExpirationRequired(),
		jwt.WithLeeway(leeway), jwt.WithJSONNumber(), jwt.WithStrictDecoding(),
	}
	if !slices.Contains(c.Audience, "*") {
		options = append(options, jwt.WithAudience(c.Audience...))
	}
	v.parser = jwt.NewParser(options...)
	v.wanted = slices.Sorted(maps.Keys(c.Claims))
	for _, header := range slices.Sorted(maps.Keys(c.Forward)) {
		v.forward[http.CanonicalHeaderKey(header)] = c.Forward[header]
	}
	return v, nil
}

// TakeOver begins with the keys of another verifier, if they are fetched from the same place. Run fetches them anew.
func (v *Verifier) TakeOver(old *Verifier) {
	mine, others := v.config, old.config
	if mine.Issuer == others.Issuer && mine.JWKS == others.JWKS && mine.CA == others.CA {
		v.source.set.Store(old.source.set.Load())
	}
}

// Run keeps the keys fresh until ctx is done.
func (v *Verifier) Run(ctx context.Context) error {
	v.source.run(ctx)
	return nil
}

// Ready is nil when there are keys, be they old.
func (v *Verifier) Ready() error {
	if v.source.set.Load() != nil {
		return nil
	}
	v.source.mu.Lock()
	defer v.source.mu.Unlock()
	if v.source.fault != nil {
		return v.source.fault
	}
	return errors.New("keys are not fetched yet")
}

// Wrap passes the requests with a good token on to next. The ResponseWriter is passed on as it is.
func (v *Verifier) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.clean(r.Header)
		token, why := bearer(r.Header)
		var forward http.Header
		if why == passed {
			forward, why = v.check(r.Context(), token)
		}
		v.metrics.checks[why].Inc()
		if why != passed {
			v.refuse(w, r, why)
			return
		}
		maps.Copy(r.Header, forward)
		next.ServeHTTP(w, r)
	})
}

// clean removes the headers that only we may set. Many backends take an underscore, or any other punctuation, for a
// hyphen.
func (v *Verifier) clean(h http.Header) {
	for only := range v.forward {
		only = hyphened(only)
		maps.DeleteFunc(h, func(name string, _ []string) bool { return hyphened(name) == only })
	}
}

// hyphened is a name with hyphens for all punctuation.
func hyphened(name string) string {
	return http.CanonicalHeaderKey(strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' {
			return c
		}
		return '-'
	}, name))
}

// bearer takes the token from the request (RFC 6750, 2.1). Other places, such as the query, are not looked at: they
// end in logs.
func bearer(h http.Header) (string, outcome) {
	values := h["Authorization"]
	if len(values) == 0 {
		return "", missing
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	token = strings.Trim(token, " ")
	switch {
	case len(values) > 1: // the backend may look at the other
		return "", malformed
	case !ok || !strings.EqualFold(scheme, "Bearer"):
		return "", missing
	case token == "" || len(token) > maxToken || strings.ContainsAny(token, " ,\t"):
		return "", malformed
	}
	return token, passed
}

// check verifies a token, and returns the headers for the backend.
func (v *Verifier) check(ctx context.Context, token string) (http.Header, outcome) {
	keys := v.source.set.Load()
	if keys == nil {
		return nil, unavailable
	}
	forward, why := v.verify(token, keys)
	if why == unknownKey && v.source.await(ctx) {
		return v.verify(token, v.source.set.Load())
	}
	return forward, why
}

// The faults that the parser hands back as it got them.
var (
	errUnknownKey = errors.New("no such key")
	errHeader     = errors.New("header not accepted")
)

// verify checks everything about a token.
func (v *Verifier) verify(token string, keys *keySet) (http.Header, outcome) {
	claims := jwt.MapClaims{}
	_, err := v.parser.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) { return v.keysFor(t, keys) })
	if err != nil {
		return nil, outcomeOf(err)
	}
	if !v.whole(token) {
		return nil, malformed
	}
	for _, name := range v.wanted {
		if !satisfies(name, find(claims, name), v.config.Claims[name]) {
			return nil, forbidden
		}
	}
	forward := http.Header{}
	for header, claim := range v.forward {
		if value := headerValue(find(claims, claim)); value != "" {
			forward[header] = []string{value}
		}
	}
	return forward, passed
}

// whole is whether a token's claims are one JSON value and nothing behind it: the library reads the first value only,
// and the backend, which may read the token too, must not find another there.
func (v *Verifier) whole(token string) bool {
	_, rest, _ := strings.Cut(token, ".")
	part, _, _ := strings.Cut(rest, ".")
	text, err := v.parser.DecodeSegment(part)
	return err == nil && json.Valid(text)
}

// keysFor looks at the header, and chooses the keys by its kid and alg; never by what else it brings (jwk, jku, x5c).
func (v *Verifier) keysFor(t *jwt.Token, keys *keySet) (any, error) {
	if _, critical := t.Header["crit"]; critical { // RFC 7515, 4.1.11: we understand none
		return nil, errHeader
	}
	kind, present := t.Header["typ"]
	name, isText := kind.(string)
	if prefix := "application/"; len(name) > len(prefix) && strings.EqualFold(name[:len(prefix)], prefix) {
		name = name[len(prefix):]
	}
	if present && !isText || name != "" && !strings.EqualFold(name, "JWT") && !strings.EqualFold(name, "at+jwt") {
		return nil, errHeader
	}
	id, present := t.Header["kid"]
	kid, isText := id.(string)
	if present && !isText {
		return nil, errHeader
	}
	if !keys.knows(kid) {
		return nil, errUnknownKey
	}
	set := jwt.VerificationKeySet{Keys: keys.find(kid, t.Method.Alg())}
	if len(set.Keys) == 0 {
		return nil, errHeader // there is such a key, and it is not for this algorithm
	}
	return set, nil
}

func outcomeOf(err error) outcome {
	switch {
	case errors.Is(err, errUnknownKey):
		return unknownKey
	case errors.Is(err, errHeader):
		return badHeader
	case errors.Is(err, jwt.ErrTokenMalformed):
		return malformed
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return badSignature
	case errors.Is(err, jwt.ErrTokenExpired):
		return expired
	case errors.Is(err, jwt.ErrTokenNotValidYet), errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return early
	case errors.Is(err, jwt.ErrTokenInvalidIssuer):
		return badIssuer
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return badAudience
	default: // a claim that must be there is not, or is of the wrong type
		return malformed
	}
}

// refuse answers 401, 403 or 503 (RFC 6750, 3), or as gRPC does.
func (v *Verifier) refuse(w http.ResponseWriter, r *http.Request, why outcome) {
	challenge := `Bearer realm="stack"`
	switch why {
	case unavailable:
		w.Header().Set("Retry-After", "5")
		reply.Refuse(w, r, http.StatusServiceUnavailable, reply.Unavailable, "tokens cannot be checked yet")
		return
	case forbidden:
		w.Header().Set("Www-Authenticate", challenge+`, error="insufficient_scope"`)
		reply.Refuse(w, r, http.StatusForbidden, reply.PermissionDenied, why.text())
		return
	case missing:
	default:
		challenge += `, error="invalid_token", error_description="` + why.text() + `"`
	}
	w.Header().Set("Www-Authenticate", challenge)
	reply.Refuse(w, r, http.StatusUnauthorized, reply.Unauthenticated, why.text())
}
