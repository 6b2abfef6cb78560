package route

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/internal/strict"
)

// checker reads a file, and finds what is wrong with what it says.
type checker struct {
	strict.Decoder
	refused []string // fields that do not apply
}

// Parse reads a routes file. With an error, which is of type [strict.Mistakes], the table holds what could be read.
func Parse(text []byte, defaults Defaults) (Table, error) {
	d := &checker{Decoder: strict.Decoder{Removed: removed}}
	var t Table
	d.Decode(text, &t)
	read, written := d.Mistakes(), len(t.Routes)
	t = t.merge(defaults)
	d.check(t, written, defaults)
	t.fill(defaults)
	d.DropAfter(read)
	d.Drop(func(m strict.Mistake) bool { // nor does it matter what is wrong with what does not apply
		return slices.ContainsFunc(d.refused, func(field string) bool {
			rest, ok := strings.CutPrefix(m.Field, field)
			if rest == "" {
				return ok && !strings.HasPrefix(m.Text, notApplicable)
			}
			return ok && (rest[0] == '.' || rest[0] == '[')
		})
	})
	if mistakes := d.Mistakes(); len(mistakes) > 0 {
		return t, mistakes
	}
	return t, nil
}

const notApplicable = "does not apply"

// Load reads and parses a routes file.
func Load(path string, defaults Defaults) (Table, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Table{}, fmt.Errorf("failed to read routes: %w", err)
	}
	t, err := Parse(text, defaults)
	if err != nil {
		return t, fmt.Errorf("failed to parse routes file %s:\n%w", path, err)
	}
	return t, nil
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// check finds what the types alone do not. Only the written routes, the first ones, have lines.
func (d *checker) check(t Table, written int, defaults Defaults) {
	d.enums(reflect.ValueOf(t), "")
	if len(t.Routes) == 0 && len(d.Mistakes()) == 0 {
		d.Mistake(d.Line("routes"), "routes", "there is none")
	}
	named := map[string]int{}
	for i, r := range t.Routes {
		field := fmt.Sprintf("routes[%d]", i)
		at := func(sub, format string, args ...any) {
			full := field
			if sub != "" {
				full += "." + sub
			}
			if format = fmt.Sprintf(format, args...); strings.HasPrefix(format, notApplicable) {
				d.refused = append(d.refused, full)
			}
			d.Mistake(d.Line(full), full, "%s", format)
		}
		switch first, ok := named[r.Name]; {
		case r.Name == "":
			at("name", "required")
		case !nameForm.MatchString(r.Name):
			at("name", "%q is no name: lower-case letters, digits and inner hyphens, at most 63", r.Name)
		case ok:
			at("name", "%q is the name of routes[%d] too", r.Name, first)
		default:
			named[r.Name] = i
		}
		r.check(at)
	}
	d.share(t, written, defaults)
}

// check finds what is missing, and what the route's protocol cannot do.
func (r Route) check(at func(field, format string, args ...any)) {
	if r.Protocol == "" {
		at("protocol", "required: one of %v", Protocols())
		return
	}
	if len(r.Listen) == 0 {
		at("listen", "required")
	}
	switch {
	case r.Protocol != Files && len(r.Backends) == 0:
		at("backends", "required")
	case r.Protocol == Files && len(r.Backends) > 0:
		at("backends", "a files route has none")
	}
	web := []Protocol{HTTP, GRPC, Files}
	stream := append([]Protocol{TCP}, web...)
	only := func(field string, set bool, protocols ...Protocol) {
		if set && slices.Contains(Protocols(), r.Protocol) && !slices.Contains(protocols, r.Protocol) {
			at(field, notApplicable+" to protocol %s", r.Protocol)
		}
	}
	only("files", r.Files != FilesOptions{}, Files)
	only("tftp", r.TFTP != TFTPOptions{}, TFTP)
	only("hosts", len(r.Hosts) > 0, web...)
	only("tls", r.TLS != nil, web...)
	only("jwt", r.JWT != nil, web...)
	only("rewrite", r.Rewrite != nil, HTTP, Files)
	only("paths", r.Paths != nil, web...)
	only("backendTLS", r.BackendTLS != nil, HTTP, GRPC)
	only("limits.requests", r.Limits.Requests != nil, web...)
	only("trustedPrefixes", len(r.TrustedPrefixes) > 0, HTTP, GRPC)
	only("accessLog", r.AccessLog != "", web...)
	only("proxyProtocol.accept", len(r.ProxyProtocol.Accept) > 0, stream...)
	only("proxyProtocol.send", r.ProxyProtocol.Send != "", TCP)
	only("limits.connections", r.Limits.Connections != 0, stream...)
	only("limits.connectionsPerClient", r.Limits.ConnectionsPerClient != 0, stream...)
	only("limits.rate", r.Limits.Rate != 0, HTTP, Files)
	only("timeouts.idle", r.Timeouts.Idle != 0, TCP, HTTP, GRPC, Files, TFTP, UDP)
	r.checkEdge(at)
	r.checkNumbers(at)
}

// loadersAt is a port, and a path that ends with a slash.
var loadersAt = regexp.MustCompile(`^:[0-9]{1,5}/([A-Za-z0-9._~-]+/)*$`)

// leastRate tells bits from Mbits that were written without their unit.
const leastRate setting.Rate = 1e6

func (r Route) checkNumbers(at func(field, format string, args ...any)) {
	for field, n := range map[string]int{
		"limits.connections":          r.Limits.Connections,
		"limits.connectionsPerClient": r.Limits.ConnectionsPerClient,
	} {
		if n < 0 {
			at(field, "%d is below 0", n)
		}
	}
	if rate := r.Limits.Rate; rate > 0 && rate < leastRate {
		at("limits.rate", "%s bits a second is below %s: machines would not boot", rate, leastRate)
	}
	if files := r.TFTP.Files; files != "" && !filepath.IsAbs(files) && !filepath.IsLocal(files) {
		at("tftp.files", "%q leads out of the directory of files", files)
	}
	if loaders := r.TFTP.Loaders; loaders != "" && !loadersAt.MatchString(loaders) {
		at("tftp.loaders", "%q is no port and path, such as :7171/ipxe/", loaders)
	}
}

// enums checks every field that has a closed list of values.
func (d *checker) enums(v reflect.Value, field string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				continue
			}
			path := join(field, name)
			values := f.Tag.Get("enum")
			if got := v.Field(i); values != "" && got.String() != "" &&
				!slices.Contains(strings.Split(values, ","), got.String()) {
				d.Mistake(d.Line(path), path, "%q is none of %s", got, strings.ReplaceAll(values, ",", ", "))
			}
			d.enums(v.Field(i), path)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Struct && v.Type().Elem() != reflect.TypeFor[netip.Prefix]() {
			for i := range v.Len() {
				d.enums(v.Index(i), fmt.Sprintf("%s[%d]", field, i))
			}
		}
	}
}

func join(field, key string) string {
	if field == "" {
		return key
	}
	return field + "." + key
}
