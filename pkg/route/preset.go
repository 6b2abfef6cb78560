package route

import (
	"cmp"
	"embed"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/internal/strict"
)

// Defaults are what a table takes from the program's settings.
type Defaults struct {
	// Tinkerbell is the host of the presets' backends; empty is that of Tinkerbell's own charts.
	Tinkerbell string
	// FilesDirectory is what a files route serves that does not say.
	FilesDirectory string
	// Admin is the admin port's address, which no route can have; invalid is unknown.
	Admin netip.AddrPort
	// Trusted prefixes of the http and grpc routes that have none.
	Trusted []netip.Prefix
	// Drain is the timeout of the routes that have none.
	Drain setting.Duration
}

//go:embed presets/*.yaml
var presets embed.FS

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
	if mistakes := d.Mistakes(); len(mistakes) > 0 {
		return t, fmt.Errorf("failed to use preset %s:\n%w", name, mistakes)
	}
	return t, nil
}

// preset reads a built-in table, with the host that is set in place of its own.
func (d Defaults) preset(name string) (t Table, ok bool) {
	text, err := presets.ReadFile("presets/" + name + ".yaml")
	if err != nil {
		return t, false
	}
	new(strict.Decoder).Decode(text, &t) // a test reads it
	for i := range t.Routes {
		for j := range t.Routes[i].Backends {
			b := &t.Routes[i].Backends[j]
			b.Host = cmp.Or(d.Tinkerbell, b.Host)
		}
	}
	return t, true
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
		t.Routes[i].fill(d, t.TrustedPrefixes)
	}
}

// fill sets what a route leaves out, but for its addresses.
func (r *Route) fill(d Defaults, trusted []netip.Prefix) {
	r.Timeouts.Drain = cmp.Or(r.Timeouts.Drain, d.Drain)
	if r.TrustedPrefixes == nil && (r.Protocol == HTTP || r.Protocol == GRPC) {
		r.TrustedPrefixes = trusted
	}
	if r.AccessLog == "" && (r.Protocol == HTTP || r.Protocol == GRPC || r.Protocol == Files) {
		r.AccessLog = "errors"
	}
	switch r.Protocol {
	case TFTP:
		r.TFTP.Source = cmp.Or(r.TFTP.Source, "proxy")
		if files := r.TFTP.Files; files != "" && !filepath.IsAbs(files) {
			r.TFTP.Files = d.FilesDirectory + inside + filepath.Clean(files)
		}
	case Files:
		r.Files.Directory = cmp.Or(r.Files.Directory, d.FilesDirectory)
	}
}
