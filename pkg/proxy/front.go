package proxy

import (
	"context"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/artifacts"
	"github.com/tinkerbell/stack/pkg/bootfile"
	"github.com/tinkerbell/stack/pkg/endpoint"
	"github.com/tinkerbell/stack/pkg/proxy/tcp"
	"github.com/tinkerbell/stack/pkg/proxy/web"
	"github.com/tinkerbell/stack/pkg/route"
)

// front is a route's listener at one address, of one of the protocol packages.
type front interface {
	Serve(ctx context.Context) error
	Ready() error
	// Active is the number of open connections or sessions.
	Active() int
}

// listen opens a route's front at one address.
func (p *Proxy) listen(c *change, r route.Route, l route.Listen) (front, error) {
	log, backend := p.log.With("route", r.Name), c.pools[r.Name]
	switch r.Protocol {
	case route.TCP:
		return tcp.Listen(tcp.Config{
			Route: r.Name, Listen: l.AddrPort(), Settings: tcpSettings(r, backend),
			Logger: log, Metrics: p.metrics.tcp, Loops: p.loops, Account: p.options.Account, Sink: p.options.Sink,
		})
	case route.HTTP, route.GRPC, route.Files:
		return web.Listen(web.Config{
			Route: r.Name, Listen: l.AddrPort(), Settings: p.settingsAt(c, r.Address(l), nil),
			Logger: p.log, Metrics: p.metrics.web,
			Loops: p.loops, Account: p.options.Account, Sink: p.options.Sink,
		})
	default:
		return p.listenDatagram(r, l, backend, log)
	}
}

// updatable reports whether an open front can take the settings of its route's next version.
func updatable(old *running, next route.Route) bool {
	if old.route.Web() && next.Web() {
		return true // the socket stays, whichever routes share it
	}
	if old.route.Protocol != next.Protocol || old.route.Name != next.Name {
		return false
	}
	if _, ok := old.front.(*datagramFront); ok {
		return sameDatagram(old.route, next)
	}
	return true
}

// updateFront puts new settings in force on an open front. The caller has asked updatable.
func (p *Proxy) updateFront(c *change, old *running, next route.Route) {
	backend := c.pools[next.Name]
	switch f := old.front.(type) {
	case *tcp.Front:
		f.Update(tcpSettings(next, backend))
	case *web.Front:
		f.Update(p.settingsAt(c, next.Address(old.listen), old))
	case *datagramFront:
		f.update(next, backend)
	}
}

func tcpSettings(r route.Route, backend *pool) tcp.Settings {
	s := tcp.Settings{
		Pool:           backend.Pool,
		Idle:           r.Timeouts.Idle.D(),
		Drain:          r.Timeouts.Drain.D(),
		MaxConnections: r.Limits.Connections,
		MaxPerClient:   r.Limits.ConnectionsPerClient,
		AcceptProxy:    r.ProxyProtocol.Accept,
	}
	switch r.ProxyProtocol.Send {
	case "v1":
		s.SendProxy = 1
	case "v2":
		s.SendProxy = 2
	}
	return s
}

func (p *Proxy) webSettings(t route.Table, r route.Route, backend *pool) web.Settings {
	s := web.Settings{
		GRPC:           r.Protocol == route.GRPC,
		Trusted:        r.TrustedPrefixes,
		Timeouts:       web.Timeouts{Idle: r.Timeouts.Idle.D()},
		Shaper:         p.shapers.Route(r.Name),
		Rate:           r.Limits.Rate.Bits(),
		MaxConnections: r.Limits.Connections,
		MaxPerClient:   r.Limits.ConnectionsPerClient,
		AcceptProxy:    r.ProxyProtocol.Accept,
		Drain:          r.Timeouts.Drain.D(),
		AccessLog:      web.AccessLog(r.AccessLog),
	}
	if r.Protocol != route.Files {
		s.Pool = backend.Pool
		return s
	}
	files := artifacts.New(artifacts.Config{
		Directory: r.Files.Directory,
		Route:     r.Name,
		Spelled:   spelled(r.Files.Directory, bootPaths(t, r)),
		Logger:    p.log.With("route", r.Name),
		Metrics:   p.metrics.files,
	})
	s.Handler, s.Ready = filesHandler{files}, files.Ready
	return s
}

// bootPaths are where in a files route's directory the boot files of tftp routes are.
func bootPaths(t route.Table, files route.Route) []string {
	var paths []string
	for _, r := range t.Routes {
		if directory, below := r.TFTP.BootFiles(); below != "" && directory == files.Files.Directory {
			paths = append(paths, below)
		}
	}
	return paths
}

// spelled finds files at these paths by names as firmware writes them; nil where there is no path.
func spelled(directory string, paths []string) func(path string) (name string, ok bool) {
	if len(paths) == 0 {
		return nil
	}
	all := make([]*bootfile.Names, len(paths))
	for i, below := range paths {
		all[i] = bootfile.NewNames(directory, below)
	}
	return func(path string) (name string, ok bool) {
		for _, names := range all {
			if name, ok = names.Find(path); ok {
				return name, true
			}
		}
		return "", false
	}
}

// filesHandler lets package web serve small files in its event loop.
type filesHandler struct{ *artifacts.Handler }

// Cached implements web.CachedFiles.
func (f filesHandler) Cached(path string) web.CachedFile {
	if file := f.Handler.Cached(path); file != nil {
		return file
	}
	return nil
}

// poolConfig has the settings of a route's pool.
func (p *Proxy) poolConfig(t route.Table, r route.Route) endpoint.Config {
	sources := make([]endpoint.Source, len(r.Backends))
	for i, b := range r.Backends {
		sources[i] = p.source(b)
	}
	return endpoint.Config{
		Route:    r.Name,
		Sources:  sources,
		ByClient: r.Protocol.Network() == "udp", // its datagrams are to meet one endpoint
		Self:     p.self(t, r.Protocol.Network()),
		Logger:   p.log.With("route", r.Name),
		Metrics:  p.metrics.pools,
	}
}

func (p *Proxy) source(b route.Backend) endpoint.Source {
	if b.Service != nil {
		return p.options.Kube.Service(b.Service.Namespace, b.Service.Name, b.Service.Port)
	}
	if addr, err := netip.ParseAddr(b.Host); err == nil {
		return endpoint.Fixed(netip.AddrPortFrom(addr, b.Port))
	}
	return p.options.Resolver.Host(b.Host, b.Port)
}
