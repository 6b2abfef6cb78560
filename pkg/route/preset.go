package route

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/edge/paths"
)

// Defaults are what a table takes from the program's settings.
type Defaults struct {
	// Tinkerbell is the host of the presets' backends; empty is that of Tinkerbell's own charts.
	Tinkerbell string
	// FilesDirectory is what a files route serves that does not say.
	FilesDirectory string
	// Admin is the admin port's address, which no route can have; invalid is unknown.
	Admin netip.AddrPort
	// ReadFiles also looks at what routes name of the file system. It may come after a start, and is elsewhere where a
	// file is checked before it is used.
	ReadFiles bool
	// Trusted prefixes of the http and grpc routes that have none.
	Trusted []netip.Prefix
	// Drain is the timeout of the routes that have none.
	Drain setting.Duration
}

// Presets lists the built-in tables.
func Presets() []string { return []string{"classic", "tinkerbell", "tinkerbell-0.22"} }

// Preset gives a built-in table: classic is the layout of the Helm chart "stack" (Hegel, Tink Server and Smee each
// on its own), tinkerbell that of the one binary, tinkerbell-0.22 that of the binary before 0.23. With an error, the
// defaults do not go with it.
func Preset(name string, defaults Defaults) (Table, error) {
	t, ok := defaults.preset(name)
	if !ok {
		return t, fmt.Errorf("failed to find preset %q", name)
	}
	d := &checker{}
	d.check(t, 0, defaults)
	t.fill(defaults)
	if defaults.ReadFiles {
		d.checkFiles(t, 0)
	}
	if mistakes := d.Mistakes(); len(mistakes) > 0 {
		return t, fmt.Errorf("failed to use preset %s:\n%w", name, mistakes)
	}
	return t, nil
}

func (d Defaults) preset(name string) (Table, bool) {
	port := func(n uint16) []Listen { return []Listen{Listen(netip.AddrPortFrom(netip.Addr{}, n))} }
	files := func(n uint16) Route { return Route{Name: "files", Protocol: Files, Listen: port(n)} }
	switch name {
	case "classic":
		return Table{Routes: []Route{
			{
				Name: "hegel", Protocol: HTTP, Listen: port(50061), Backends: d.backend("hegel", 50061),
				Paths: &paths.Config{Deny: []string{"/metrics", "/healthz"}},
			},
			{
				Name: "tink", Protocol: TCP, Listen: port(42113), Backends: d.backend("tink-server", 42113),
			},
			{
				Name: "smee-http", Protocol: HTTP, Listen: port(7171), Backends: d.backend("smee", 7171),
				Paths: &paths.Config{Deny: []string{"/metrics", "/healthcheck"}},
			},
			{
				Name: "smee-tftp", Protocol: TFTP, Listen: port(69), Backends: d.backend("smee", 69),
				TFTP: TFTPOptions{Loaders: ":7171/ipxe/"},
			},
			{Name: "smee-syslog", Protocol: Syslog, Listen: port(514), Backends: d.backend("smee", 514)},
			files(8080),
		}}, true
	case "tinkerbell":
		return Table{Routes: d.tinkerbell(port, files(7173))}, true
	case "tinkerbell-0.22":
		return Table{Routes: d.tinkerbell022(port, files(7173))}, true
	default:
		return Table{}, false
	}
}

// tinkerbellPaths are what machines need of Tinkerbell's HTTP servers: scripts and binaries of iPXE, ISO, PXE over
// HTTP, metadata. Its user interface takes every path that is nothing else, so all but these are hidden.
var tinkerbellPaths = []string{"/ipxe", "/iso", "/tftp", "/2009-04-04", "/metadata", "/tootles"}

// tinkerbell is the one binary's preset. Its HTTPS needs a certificate, and is a route of the file.
func (d Defaults) tinkerbell(port func(uint16) []Listen, files Route) []Route {
	at := func(port uint16) []Backend { return d.backend("tinkerbell", port) }
	visible := &paths.Config{Allow: tinkerbellPaths}
	routes := []Route{{Name: "http", Protocol: HTTP, Listen: port(7080), Backends: at(7080), Paths: visible}}
	return append(routes,
		Route{Name: "grpc", Protocol: TCP, Listen: port(42113), Backends: at(42113)},
		Route{
			Name: "tftp", Protocol: TFTP, Listen: port(69), Backends: at(69),
			TFTP: TFTPOptions{Loaders: ":7080/ipxe/binary/"},
		},
		Route{Name: "syslog", Protocol: Syslog, Listen: port(514), Backends: at(514)},
		Route{Name: "ssh", Protocol: TCP, Listen: port(2222), Backends: at(2222), Optional: true},
		files,
	)
}

// tinkerbell022 is the one binary up to 0.22, whose Smee and Tootles had HTTP ports of their own. (Tootles had 50061 in
// 0.18.)
func (d Defaults) tinkerbell022(port func(uint16) []Listen, files Route) []Route {
	at := func(port uint16) []Backend { return d.backend("tinkerbell", port) }
	return []Route{
		{
			Name: "http", Protocol: HTTP, Listen: port(7171), Backends: at(7171),
			Paths: &paths.Config{Deny: []string{"/metrics", "/healthcheck"}},
		},
		{
			Name: "metadata", Protocol: HTTP, Listen: port(7172), Backends: at(7172),
			Paths: &paths.Config{Deny: []string{"/metrics", "/healthz"}},
		},
		{Name: "grpc", Protocol: TCP, Listen: port(42113), Backends: at(42113)},
		{
			// Before 0.22 the loaders are at /ipxe/, and Smee goes by the last part of the path.
			Name: "tftp", Protocol: TFTP, Listen: port(69), Backends: at(69),
			TFTP: TFTPOptions{Loaders: ":7171/ipxe/binary/"},
		},
		{Name: "syslog", Protocol: Syslog, Listen: port(514), Backends: at(514)},
		{Name: "ssh", Protocol: TCP, Listen: port(2222), Backends: at(2222), Optional: true},
		files,
	}
}

// backend is a port of the host that is set, or of the preset's own.
func (d Defaults) backend(host string, port uint16) []Backend {
	return []Backend{{Host: cmp.Or(d.Tinkerbell, host), Port: port}}
}

// merge puts the preset's routes behind the written ones, but for those of the same name.
func (t Table) merge(d Defaults) Table {
	preset, ok := d.preset(t.Preset)
	if !ok {
		return t
	}
	for _, r := range preset.Routes {
		if !slices.ContainsFunc(t.Routes, func(own Route) bool { return own.Name == r.Name }) {
			t.Routes = append(t.Routes, r)
		}
	}
	return t
}

// fill sets what routes leave out. The effective table is complete, so that two of them can be compared.
func (t *Table) fill(d Defaults) {
	if t.TrustedPrefixes == nil {
		t.TrustedPrefixes = d.Trusted
	}
	for i := range t.Routes {
		r := &t.Routes[i]
		r.fill(d, t.TrustedPrefixes)
	}
}

// fill sets what a route leaves out, but for its addresses.
func (r *Route) fill(d Defaults, trusted []netip.Prefix) {
	if r.Timeouts.Drain == 0 {
		r.Timeouts.Drain = d.Drain
	}
	if r.TrustedPrefixes == nil && (r.Protocol == HTTP || r.Protocol == GRPC) {
		r.TrustedPrefixes = trusted
	}
	if r.AccessLog == "" && (r.Protocol == HTTP || r.Protocol == GRPC || r.Protocol == Files) {
		r.AccessLog = "errors"
	}
	switch r.Protocol {
	case Syslog:
		r.Syslog.Source = cmp.Or(r.Syslog.Source, "rewrite")
	case TFTP:
		r.TFTP.Source = cmp.Or(r.TFTP.Source, "proxy")
		if files := r.TFTP.Files; files != "" && !filepath.IsAbs(files) {
			r.TFTP.Files = d.FilesDirectory + inside + filepath.Clean(files)
		}
	case Files:
		r.Files.Directory = cmp.Or(r.Files.Directory, d.FilesDirectory)
	}
}

// everywhere is invalid for all addresses, as in [Listen].
func everywhere(addr netip.Addr) netip.Addr {
	if addr.IsUnspecified() {
		return netip.Addr{}
	}
	return addr.Unmap()
}
