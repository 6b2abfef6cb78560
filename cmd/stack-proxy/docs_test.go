package main

import (
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tinkerbell/stack/internal/envdoc"
	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/artifacts/fetch"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/proxy"
	"github.com/tinkerbell/stack/pkg/proxy/admission"
	"github.com/tinkerbell/stack/pkg/route"
)

var update = flag.Bool("update", false, "write the generated parts of the document anew")

const (
	document  = "../../docs/stack-proxy.md"
	reference = "../../docs/reference/stack-proxy.md"
)

// Tables of the documents are made from the code, by "make generate".
func TestDocumentsAgreeWithCode(t *testing.T) {
	for path, tables := range map[string]map[string]string{
		document: {
			"classic": preset(t, "classic"), "tinkerbell": preset(t, "tinkerbell"), "tinkerbell-0.22": preset(t, "tinkerbell-0.22"),
		},
		reference: {
			"variables": envdoc.Table(prefix, reflect.TypeFor[config]()), "fields": fields(), "metrics": envdoc.Metrics(registered(t), "stack_proxy_"),
		},
	} {
		envdoc.Check(t, path, *update, tables)
	}
}

// registered are the metrics of a proxy that has files fetched.
func registered(t *testing.T) prometheus.Collector {
	t.Helper()
	registry := prometheus.NewRegistry()
	fetch.NewMetrics(registry)
	account := admission.Reserve{}.Account(nil, slog.New(slog.DiscardHandler))
	if _, err := proxy.New(proxy.Options{Registry: registry, Account: account}); err != nil {
		t.Fatal(err)
	}
	return registry
}

func fields() string {
	var b strings.Builder
	b.WriteString("| field | kind | meaning |\n|---|---|---|\n")
	for _, f := range fieldsOf(reflect.TypeFor[route.Table](), "") {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f[0], f[1], f[2])
	}
	return b.String()
}

// fieldsOf lists every field of a routes file: path, kind, meaning.
func fieldsOf(t reflect.Type, prefix string) [][3]string {
	var all [][3]string
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			continue
		}
		path, inner := prefix+name, f.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Slice {
			inner, path = inner.Elem(), path+"[]"
		}
		all = append(all, [3]string{path, kindOf(inner, f.Tag.Get("enum")), f.Tag.Get("desc")})
		if kindOf(inner, "") == "fields" {
			all = append(all, fieldsOf(inner, path+".")...)
		}
	}
	return all
}

func kindOf(t reflect.Type, enum string) string {
	if enum != "" {
		return strings.ReplaceAll(enum, ",", ", ")
	}
	switch t {
	case reflect.TypeFor[setting.Duration]():
		return "duration"
	case reflect.TypeFor[setting.Rate]():
		return "rate"
	case reflect.TypeFor[route.Listen]():
		return "port or address"
	case reflect.TypeFor[route.Backend]():
		return "backend"
	case reflect.TypeFor[netip.Prefix]():
		return "prefix"
	}
	switch t.Kind() {
	case reflect.Struct:
		return "fields"
	case reflect.Bool:
		return "true, false"
	case reflect.String:
		return "text"
	case reflect.Int, reflect.Float64:
		return "number"
	case reflect.Map:
		return "names and values"
	default:
		panic(fmt.Sprintf("type %s has no word", t))
	}
}

func preset(t *testing.T, name string) string {
	table, err := route.Preset(name, route.Defaults{FilesDirectory: "`STACK_PROXY_FILES_DIRECTORY`"})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("| port | route | protocol | backend |\n|---|---|---|---|\n")
	for _, r := range table.Routes {
		backend := r.Files.Directory
		if len(r.Backends) > 0 {
			backend = r.Backends[0].String()
		}
		if r.Optional {
			backend += " (optional)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", strings.TrimPrefix(r.Address(r.Listen[0]), ":"), r.Name, r.Protocol, backend)
	}
	return b.String()
}

// TestSettingsForHostsAreTaken: commands of docs/without-kubernetes.md, and the units of docs/examples/host.
func TestSettingsForHostsAreTaken(t *testing.T) {
	envdoc.CheckSettings(t, "../../docs/without-kubernetes.md", "../../docs/examples/host", prefix, 1, func() error {
		return daemon.ParseEnv(prefix, &config{})
	})
}
