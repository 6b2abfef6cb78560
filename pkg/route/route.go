// Package route describes what stack-proxy serves: a table of routes, from a preset or from one YAML file.
//
// The package is data only. [Parse] reads a file strictly and reports every mistake with its line and field;
// [Preset] gives the built-in tables; pkg/proxy acts on them.
package route

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/edge/certs"
	"github.com/tinkerbell/stack/pkg/edge/host"
	"github.com/tinkerbell/stack/pkg/edge/jwt"
	"github.com/tinkerbell/stack/pkg/edge/limit"
	"github.com/tinkerbell/stack/pkg/edge/paths"
	"github.com/tinkerbell/stack/pkg/edge/rewrite"
)

// Protocol is what a route speaks.
type Protocol string

// The protocols.
const (
	TCP    Protocol = "tcp"
	HTTP   Protocol = "http"
	GRPC   Protocol = "grpc"
	TFTP   Protocol = "tftp"
	Syslog Protocol = "syslog"
	UDP    Protocol = "udp"
	Files  Protocol = "files"
)

// Protocols lists them all.
func Protocols() []Protocol { return []Protocol{TCP, HTTP, GRPC, TFTP, Syslog, UDP, Files} }

// Network is the transport below: tcp or udp.
func (p Protocol) Network() string {
	if slices.Contains([]Protocol{TFTP, Syslog, UDP}, p) {
		return "udp"
	}
	return "tcp"
}

// Table is the whole file.
type Table struct {
	// Preset begins with a built-in table; routes of the same name replace its routes.
	Preset string `json:"preset,omitempty" enum:"classic,tinkerbell,tinkerbell-0.22" desc:"begin with the routes of a built-in table; routes of the same name replace them"`
	// TrustedPrefixes hold for every route that has none of its own.
	TrustedPrefixes []netip.Prefix `json:"trustedPrefixes,omitempty" desc:"peers whose X-Forwarded-For is believed, for the routes that do not say"`
	Routes          []Route        `json:"routes,omitempty" desc:"the routes"`
}

// Route is one row of the table.
type Route struct {
	Name            string          `json:"name" desc:"names the route in logs, metrics and errors"`
	Protocol        Protocol        `json:"protocol" enum:"tcp,http,grpc,tftp,syslog,udp,files" desc:"what it speaks"`
	Listen          []Listen        `json:"listen" desc:"ports or addresses with ports: 69, \"192.0.2.1:69\", \"[2001:db8::1]:69\""`
	Backends        []Backend       `json:"backends,omitempty" desc:"host:port by DNS, or service:[NAMESPACE/]NAME:PORT by EndpointSlices"`
	Optional        bool            `json:"optional,omitempty" desc:"the process is ready without it"`
	Hosts           host.Hosts      `json:"hosts,omitempty" desc:"http, grpc, files: names that the route is for; routes with others may share its port"`
	TLS             *certs.Config   `json:"tls,omitempty" desc:"http, grpc, files: ends TLS here"`
	JWT             *jwt.Config     `json:"jwt,omitempty" desc:"http, grpc, files: requests need a good token"`
	Rewrite         *rewrite.Config `json:"rewrite,omitempty" desc:"http, files: changes the path"`
	Paths           *paths.Config   `json:"paths,omitempty" desc:"http, grpc, files: which paths exist, as the backend sees them"`
	BackendTLS      *certs.Backend  `json:"backendTLS,omitempty" desc:"http, grpc: TLS to the endpoints"`
	Timeouts        Timeouts        `json:"timeouts,omitzero" desc:"0 is the default, below 0 is none"`
	Limits          Limits          `json:"limits,omitzero" desc:"0 is the default"`
	TrustedPrefixes []netip.Prefix  `json:"trustedPrefixes,omitempty" desc:"http, grpc: peers whose X-Forwarded-For is believed and appended to; it is overwritten for all others"`
	ProxyProtocol   ProxyProtocol   `json:"proxyProtocol,omitzero" desc:"tcp, http, grpc, files: PROXY headers, in and out"`
	AccessLog       string          `json:"accessLog,omitempty" enum:"off,errors,all" desc:"http, grpc, files: which requests are logged; default errors"`
	Files           FilesOptions    `json:"files,omitzero" desc:"files only"`
	TFTP            TFTPOptions     `json:"tftp,omitzero" desc:"tftp only"`
}

// Timeouts of a route.
type Timeouts struct {
	Idle setting.Duration `json:"idle,omitempty" desc:"tcp: a connection on which nothing moves (default none); http: the wait for the next request (120s); tftp, udp: a session (90s)"`
	// Drain is STACK_PROXY_DRAIN_TIMEOUT: how long what is open may go on when the route ends.
	Drain setting.Duration `json:"-"`
}

// Limits of a route.
type Limits struct {
	Connections          int           `json:"connections,omitempty" min:"0" desc:"tcp, http, grpc, files: open at a time; default what memory and descriptors allow"`
	ConnectionsPerClient int           `json:"connectionsPerClient,omitempty" min:"0" desc:"the same, by client address (IPv6: a /64; that of the PROXY header, where one is accepted)"`
	Requests             *limit.Config `json:"requests,omitempty" desc:"http, grpc, files: their rate, and how many are under way"`
	Rate                 setting.Rate  `json:"rate,omitempty" desc:"http, files: bits a second that are sent to all clients together, shared fairly among their addresses (IPv6: /64): 500M, 2.5G; default no bound"`
}

// ProxyProtocol says where PROXY headers are read and written.
type ProxyProtocol struct {
	Accept []netip.Prefix `json:"accept,omitempty" desc:"peers whose connections begin with a PROXY header, version 1 or 2; no one else's is read"`
	Send   string         `json:"send,omitempty" enum:"v1,v2" desc:"tcp: tell the endpoint the client so"`
}

// FilesOptions of a files route.
type FilesOptions struct {
	Directory string `json:"directory,omitempty" desc:"what is served; default STACK_PROXY_FILES_DIRECTORY"`
}

// TFTPOptions of a tftp route.
type TFTPOptions struct {
	Source  string `json:"source,omitempty" enum:"transparent,proxy" desc:"whose address the server sees: the machine's (needs NET_ADMIN or NET_RAW, and answers that are routed to us) or ours; default proxy"`
	Files   string `json:"files,omitempty" desc:"directory of boot files, which are served before a backend is asked: below STACK_PROXY_FILES_DIRECTORY (boot), all of it (.), or an absolute path; default none"`
	Loaders string `json:"loaders,omitempty" desc:"port and path by which the backend has its loaders by HTTP (:7171/ipxe/): those that it gives to all machines alike are served from memory; default none, the presets have Smee's"`
}

// BootFiles are the directory of boot files, and where they are in it; none is empty. The route is of a complete table.
func (o TFTPOptions) BootFiles() (directory, below string) {
	if o.Files == "" {
		return "", ""
	}
	if directory, below, ok := strings.Cut(o.Files, inside); ok {
		return directory, below
	}
	return o.Files, "."
}

// inside parts a directory that may be exchanged for another one from what is looked up in it, as in rsync(1).
const inside = "/./"

// Address is where a route's row listens, for errors and tables.
func (r Route) Address(l Listen) string { return fmt.Sprintf("%s/%s", l, r.Protocol.Network()) }
