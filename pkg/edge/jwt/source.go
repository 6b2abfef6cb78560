package jwt

import (
	"context"
	"crypto"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/tinkerbell/stack/internal/backoff"
	"github.com/tinkerbell/stack/internal/redirect"
	"github.com/tinkerbell/stack/internal/watch"
	"github.com/tinkerbell/stack/pkg/edge/certs"
)

// source keeps an issuer's keys. It keeps the last good ones while their server is down.
type source struct {
	config  Config
	client  *http.Client
	log     *slog.Logger
	metrics *routeMetrics

	set  atomic.Pointer[keySet]
	asks chan chan bool // of requests with unknown keys; each is told whether the keys were fetched since

	mu     sync.Mutex
	budget *rate.Limiter // of refreshes that those cause
	fault  error
}

const (
	budgetMost   = 5
	waitMost     = 5 * time.Second
	fetchTimeout = 10 * time.Second
	maxJWKS      = 1 << 20
	filePoll     = time.Second
	retryFirst   = time.Second
	retryMost    = time.Minute
)

// newBudget is how often unknown keys may cause a refresh: some in a row, since a rotation brings several; then one
// each 10 s, however many tokens with unknown keys come.
func newBudget() *rate.Limiter { return rate.NewLimiter(rate.Every(10*time.Second), budgetMost) }

func newSource(c Config, log *slog.Logger, m *routeMetrics) *source {
	return &source{
		config: c, log: log, metrics: m,
		client: &http.Client{Transport: newTransport(), Timeout: fetchTimeout, CheckRedirect: redirect.Secure},
		asks:   make(chan chan bool), budget: newBudget(),
	}
}

func newTransport() *http.Transport { return http.DefaultTransport.(*http.Transport).Clone() }

// run fetches the keys: at once, each refreshEvery, after failures, and when it is asked to, until ctx is done.
func (s *source) run(ctx context.Context) {
	defer s.client.CloseIdleConnections()
	pause := backoff.Backoff{First: retryFirst, Most: retryMost}
	var asked []chan bool
	for {
		changed, err := s.refresh(ctx)
		if ctx.Err() != nil {
			return
		}
		s.conclude(changed, err)
		for _, ask := range asked {
			ask <- true
		}
		wait := refreshEvery
		if err != nil {
			wait = min(pause.Next(), wait)
		} else {
			pause.Reset()
			if path.IsAbs(s.config.JWKS) {
				wait = min(filePoll, wait)
			}
		}
		if asked = s.pause(ctx, wait); ctx.Err() != nil {
			return
		}
	}
}

// pause waits, at most until requests ask for other keys, and returns all that ask by then. It refuses them where they
// have caused too many refreshes of late.
func (s *source) pause(ctx context.Context, wait time.Duration) (asked []chan bool) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
			return nil
		case ask := <-s.asks:
			s.mu.Lock()
			allowed := s.budget.Allow()
			s.mu.Unlock()
			if !allowed {
				ask <- false
				continue
			}
			for {
				asked = append(asked, ask)
				select {
				case ask = <-s.asks:
				default:
					return asked
				}
			}
		}
	}
}

// conclude notes the result of a refresh.
func (s *source) conclude(changed bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && (s.fault == nil || s.fault.Error() != err.Error()) {
		s.log.Error("failed to refresh keys", "issuer", s.config.Issuer, "error", err, "keys", s.count())
	}
	if changed {
		s.budget = newBudget() // the keys were new; a client cannot cause that
		s.log.Info("keys refreshed", "issuer", s.config.Issuer, "keys", s.count())
	}
	s.fault = err
	s.metrics.refreshed(err, s.count())
}

func (s *source) count() int {
	if set := s.set.Load(); set != nil {
		return len(set.keys)
	}
	return 0
}

// await has the keys fetched again because of an unknown key, and waits for the end of the refresh. It returns false if
// unknown keys have caused too many refreshes of late. A refresh that is under way may have asked before the key was
// there: the next one counts.
func (s *source) await(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, waitMost)
	defer cancel()
	done := make(chan bool, 1)
	select {
	case s.asks <- done:
	case <-ctx.Done():
		return false
	}
	select {
	case fetched := <-done:
		return fetched
	case <-ctx.Done():
		return false
	}
}

// refresh reads the keys, and reports whether they have changed.
func (s *source) refresh(ctx context.Context) (changed bool, err error) {
	text, err := s.read(ctx)
	if err != nil {
		return false, err
	}
	set, err := parseKeys(text)
	if err != nil {
		return false, err
	}
	if old := s.set.Load(); old != nil && old.same(set) {
		return false, nil
	}
	s.set.Store(set)
	return true, nil
}

// same reports whether two sets verify the same tokens.
func (s *keySet) same(other *keySet) bool {
	if len(s.keys) != len(other.keys) {
		return false
	}
	for i, k := range s.keys {
		o := other.keys[i]
		public, ok := k.public.(interface{ Equal(crypto.PublicKey) bool })
		if !ok || !public.Equal(o.public) || k.id != o.id || !slices.Equal(k.algorithms, o.algorithms) {
			return false
		}
	}
	return true
}

// read returns the JWKS.
func (s *source) read(ctx context.Context) ([]byte, error) {
	from := s.config.JWKS
	if path.IsAbs(from) {
		return watch.Read(from)
	}
	if err := s.trust(); err != nil {
		return nil, err
	}
	if from == "" {
		var err error
		if from, err = s.discover(ctx); err != nil {
			return nil, err
		}
	}
	return s.get(ctx, from)
}

// trust reads the CA's file for the next connections. There is one refresh at a time, and no connection is kept from
// one refresh to the next.
func (s *source) trust() error {
	if s.config.CA == "" {
		return nil
	}
	pool, err := certs.ReadPool(s.config.CA)
	if err != nil {
		return err
	}
	s.client.CloseIdleConnections()
	transport := newTransport()
	transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	s.client.Transport = transport
	return nil
}

// discover asks the issuer where its keys are (OpenID Connect Discovery 1.0, section 4; RFC 8414).
func (s *source) discover(ctx context.Context) (string, error) {
	text, err := s.get(ctx, strings.TrimSuffix(s.config.Issuer, "/")+"/.well-known/openid-configuration")
	if err != nil {
		return "", fmt.Errorf("failed to discover JWKS: %w", err)
	}
	var found struct {
		Issuer string `json:"issuer"`
		JWKS   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return "", fmt.Errorf("failed to discover JWKS: %w", err)
	}
	if found.Issuer != s.config.Issuer {
		return "", fmt.Errorf("failed to discover JWKS: the issuer says that it is %q", found.Issuer)
	}
	if err := checkURL(found.JWKS); err != nil {
		return "", fmt.Errorf("failed to discover JWKS: %w", err)
	}
	return found.JWKS, nil
}

func (s *source) get(ctx context.Context, from string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, fmt.Errorf("failed to make request: %w", err)
	}
	request.Header.Set("Accept", "application/json, application/jwk-set+json")
	answer, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("failed to get keys: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("failed to get keys: %s answered with status %d", request.URL.Redacted(), answer.StatusCode)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxJWKS+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("failed to get keys: %w", err)
	case len(text) > maxJWKS:
		return nil, fmt.Errorf("failed to get keys: %s sent more than %d bytes", request.URL.Redacted(), maxJWKS)
	}
	return text, nil
}
