// Package edge checks and changes requests in front of a route: TLS, limits, tokens, rewritten paths, hidden paths,
// each where the route asks for it. A [Gate] combines the packages below; the cheapest check comes first.
package edge

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/edge/certs"
	"github.com/tinkerbell/stack/pkg/edge/host"
	"github.com/tinkerbell/stack/pkg/edge/jwt"
	"github.com/tinkerbell/stack/pkg/edge/limit"
	"github.com/tinkerbell/stack/pkg/edge/paths"
	"github.com/tinkerbell/stack/pkg/edge/rewrite"
)

// Config has a route's settings of each part. The zero Config is no gate.
type Config struct {
	Hosts   host.Hosts
	TLS     *certs.Config
	JWT     *jwt.Config
	Limit   *limit.Config
	Rewrite *rewrite.Config
	Paths   *paths.Config
	Backend *certs.Backend
}

// Validate names every fault, with the field it is in.
func (c *Config) Validate() error {
	all := faults{}
	all.add("", c.Hosts.Validate())
	all.add("tls.", validate(c.TLS))
	all.add("jwt.", validate(c.JWT))
	all.add("limit.", validate(c.Limit))
	all.add("rewrite.", validate(c.Rewrite))
	all.add("paths.", validate(c.Paths))
	all.add("backendTLS.", validate(c.Backend))
	return errors.Join(all...)
}

// validate is Validate of a part, if there is one.
func validate[C any, P interface {
	*C
	Validate() error
}](part P) error {
	if part == nil {
		return nil
	}
	return part.Validate()
}

// faults collects errors.
type faults []error

// add puts the field in front of each fault.
func (f *faults) add(field string, err error) {
	for _, each := range setting.Faults(err) {
		*f = append(*f, fmt.Errorf("%s%w", field, each))
	}
}

// Metrics are those of every part.
type Metrics struct {
	certs *certs.Metrics
	jwt   *jwt.Metrics
	limit *limit.Metrics
	paths *paths.Metrics
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	return &Metrics{certs.NewMetrics(r), jwt.NewMetrics(r), limit.NewMetrics(r), paths.NewMetrics(r)}
}

// Options are the parts of a [Gate] besides its settings; each may be nil, but Client where there are limits.
type Options struct {
	Route   string
	Logger  *slog.Logger
	Metrics *Metrics
	// Protocols are offered by ALPN, the best first.
	Protocols []string
	// Client returns the client's address of a request, for the limits.
	Client func(*http.Request) netip.Addr
	// Before is the gate that this one replaces. The new gate takes over its certificates and keys if their settings are
	// the same: a reload that changes a limit must not lose keys whose server is away.
	Before *Gate
}

// Gate is the gate of one route. It is a task: Run keeps certificates and keys fresh.
type Gate struct {
	client  func(*http.Request) netip.Addr
	config  Config
	certs   *certs.Store
	jwt     *jwt.Verifier
	limiter *limit.Limiter
	rewrite *rewrite.Rule
	paths   *paths.Guard
	tls     *tls.Config
	trust   *certs.Trust
	tasks   []task // those of the above that read files, or fetch keys
}

// task keeps a part fresh.
type task interface {
	Run(ctx context.Context) error
	Ready() error
}

// New makes a gate.
func New(c Config, o Options) (*Gate, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("failed to set up the edge of route %s: %w", o.Route, err)
	}
	m := o.Metrics
	m = cmp.Or(m, &Metrics{})
	g := &Gate{config: c, client: o.Client}
	var err error
	if c.TLS != nil {
		g.certs, err = certs.New(*c.TLS, certs.Options{
			Route: o.Route, Logger: o.Logger, Metrics: m.certs, Protocols: o.Protocols,
		})
		if err != nil {
			return nil, err
		}
		g.tls, g.tasks = g.certs.TLS(), append(g.tasks, g.certs)
	}
	if c.JWT != nil {
		g.jwt, err = jwt.New(*c.JWT, jwt.Options{Route: o.Route, Logger: o.Logger, Metrics: m.jwt})
		if err != nil {
			return nil, err
		}
		g.tasks = append(g.tasks, g.jwt)
	}
	if c.Backend != nil {
		g.trust, err = certs.NewTrust(*c.Backend, certs.Options{Route: o.Route, Logger: o.Logger, Metrics: m.certs})
		if err != nil {
			return nil, err
		}
		g.tasks = append(g.tasks, g.trust)
	}
	if c.Limit != nil {
		g.limiter = limit.New(*c.Limit, o.Route, m.limit)
	}
	if c.Rewrite != nil {
		if g.rewrite, err = rewrite.New(*c.Rewrite); err != nil {
			return nil, err
		}
	}
	if c.Paths != nil {
		if g.paths, err = paths.New(*c.Paths, o.Route, m.paths); err != nil {
			return nil, err
		}
	}
	if o.Before != nil {
		g.takeOver(o.Before)
	}
	return g, nil
}

// takeOver takes over the certificates and keys of another gate.
func (g *Gate) takeOver(before *Gate) {
	if g.certs != nil && reflect.DeepEqual(g.config.TLS, before.config.TLS) {
		g.certs.TakeOver(before.certs)
	}
	if g.trust != nil && reflect.DeepEqual(g.config.Backend, before.config.Backend) {
		g.trust.TakeOver(before.trust)
	}
	if g.jwt != nil && before.jwt != nil {
		g.jwt.TakeOver(before.jwt)
	}
}

// TLS is for the listener; nil where the route has none.
func (g *Gate) TLS() *tls.Config { return g.tls }

// Trust is for connections to the backend; nil where they have no TLS.
func (g *Gate) Trust() *certs.Trust { return g.trust }

// Wrap puts limits, tokens, the rewriting and the paths before a handler, in this order: a counter costs less than a
// signature; only a client with a good token learns whether a path exists; and rules for paths are about the rewritten
// path, which the backend gets.
func (g *Gate) Wrap(next http.Handler) http.Handler {
	if g.paths != nil {
		next = g.paths.Wrap(next)
	}
	if g.rewrite != nil {
		next = g.rewrite.Wrap(next)
	}
	if g.jwt != nil {
		next = g.jwt.Wrap(next)
	}
	if g.limiter != nil {
		next = g.limiter.Wrap(next, g.client)
	}
	return next
}

// PassesTarget returns a function that reports whether a GET of a target certainly passes, without Wrap. It is nil
// where the gate checks more than the path.
func (g *Gate) PassesTarget() func(target []byte) bool {
	if g.paths == nil || len(g.tasks) > 0 || g.limiter != nil || g.rewrite != nil {
		return nil
	}
	return g.paths.Passes
}

// Run keeps certificates and keys fresh until ctx is done.
func (g *Gate) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, each := range g.tasks {
		running.Go(func() { _ = each.Run(ctx) }) // Ready returns its errors
	}
	running.Wait()
	<-ctx.Done()
	return nil
}

// Ready is nil if the gate can let requests pass.
func (g *Gate) Ready() error {
	faults := make([]error, len(g.tasks))
	for i, each := range g.tasks {
		faults[i] = each.Ready()
	}
	return errors.Join(faults...)
}
