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
	config    Config
	client    *http.Client
	transport *http.Transport // the client's; nil if the client is Options.Client
	log       *slog.Logger
	metrics   *routeMetrics

	set  atomic.Pointer[keySet]
	kick chan struct{}

	mu       sync.Mutex
	budget   *rate.Limiter // of refreshes that tokens with unknown keys cause
	started  uint64        // refreshes
	finished uint64
	next     chan struct{} // closed when a refresh has ended
	fault    error

	file watch.Files // the JWKS, where it is a file; only run reads it
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

func newSource(c Config, client *http.Client, log *slog.Logger, m *routeMetrics) *source {
	var transport *http.Transport
	if client == nil {
		transport = http.DefaultTransport.(*http.Transport).Clone()
		client = &http.Client{Transport: transport, Timeout: fetchTimeout, CheckRedirect: redirect.Secure}
	}
	return &source{
		config: c, client: client, transport: transport, log: log, metrics: m,
		kick: make(chan struct{}, 1), next: make(chan struct{}),
		budget: newBudget(),
	}
}

// run fetches the keys: at once, each refreshEvery, after failures, and when it is kicked, until ctx is done.
func (s *source) run(ctx context.Context) {
	defer s.client.CloseIdleConnections()
	pause := backoff.Backoff{First: retryFirst, Most: retryMost}
	for {
		s.mu.Lock()
		s.started++
		s.mu.Unlock()
		changed, err := s.refresh(ctx)
		if ctx.Err() != nil {
			return
		}
		s.conclude(changed, err)
		wait := refreshEvery
		if err != nil {
			wait = min(pause.Next(), wait)
		} else {
			pause.Reset()
			if path.IsAbs(s.config.JWKS) {
				wait = min(filePoll, wait)
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-s.kick:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// conclude notes the result of a refresh, and wakes the requests that wait for it.
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
	s.finished = s.started
	s.metrics.refreshed(err, s.count())
	close(s.next)
	s.next = make(chan struct{})
}

func (s *source) count() int {
	if set := s.set.Load(); set != nil {
		return len(set.keys)
	}
	return 0
}

// await has the keys fetched again because of an unknown key, and waits for the end of the refresh. It returns false if
// unknown keys have caused too many refreshes of late.
func (s *source) await(ctx context.Context) bool {
	s.mu.Lock()
	if len(s.kick) == 0 { // else a refresh has been asked for already: it costs nothing more
		if !s.budget.Allow() {
			s.mu.Unlock()
			return false
		}
		s.kick <- struct{}{}
	}
	want := s.started + 1 // one that is under way may have asked before the key was there
	timer := time.NewTimer(waitMost)
	defer timer.Stop()
	for s.finished < want {
		next := s.next
		s.mu.Unlock()
		select {
		case <-next:
		case <-ctx.Done():
			return false
		case <-timer.C:
			return false
		}
		s.mu.Lock()
	}
	s.mu.Unlock()
	return true
}

// refresh reads the keys, and reports whether they have changed.
func (s *source) refresh(ctx context.Context) (changed bool, err error) {
	text, err := s.read(ctx)
	if err != nil || text == nil {
		return false, err
	}
	set, err := parseKeys(text)
	if err != nil {
		return false, err
	}
	if old := s.set.Load(); old != nil && old.same(set) {
		return false, nil
	}
	for _, why := range set.skipped {
		s.log.Debug("key left out", "issuer", s.config.Issuer, "reason", why)
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

// read returns the JWKS, or nil if it is a file that has not changed.
func (s *source) read(ctx context.Context) ([]byte, error) {
	from := s.config.JWKS
	if path.IsAbs(from) {
		return s.readFile(from)
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

// readFile returns the file's text, or nil if that has not changed and its keys are in force.
func (s *source) readFile(name string) ([]byte, error) {
	s.file.Paths = []string{name}
	texts, changed, err := s.file.Read()
	if err != nil {
		return nil, err
	}
	if !changed && s.fault == nil { // the fault is written by this goroutine alone
		return nil, nil
	}
	return texts[0], nil
}

// trust reads the CA's file for the next connections. There is one refresh at a time, and no connection is kept from
// one refresh to the next.
func (s *source) trust() error {
	if s.config.CA == "" || s.transport == nil {
		return nil
	}
	pool, err := certs.ReadPool(s.config.CA)
	if err != nil {
		return err
	}
	s.transport.CloseIdleConnections()
	s.transport = s.transport.Clone()
	s.transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	s.client.Transport = s.transport
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
