package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tinkerbell/stack/internal/setting"
	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/route"
)

// config is what STACK_PROXY_* variables set.
type config struct {
	daemon.Settings
	AdminAddress string `split_words:"true" default:":9069" desc:"where /metrics, /healthz, /readyz and /routes are"`

	Preset          string         `desc:"built-in routes: tinkerbell (one binary), tinkerbell-0.22 (one binary before 0.23) or classic (Hegel, Tink Server, Smee); to be set where no routes file is"`
	RoutesFile      string         `split_words:"true" desc:"routes in YAML instead of a preset; read again when it changes and on SIGHUP"`
	Tinkerbell      string         `desc:"the preset's host, without a port; default tinkerbell, for classic the three hosts hegel, tink-server and smee"`
	FilesDirectory  string         `split_words:"true" default:"/artifacts" desc:"what is served as files"`
	ArtifactsFile   string         `split_words:"true" desc:"what to fetch and serve as files, in YAML (docs/os-files.md); default nothing is fetched"`
	ArtifactsWait   time.Duration  `split_words:"true" default:"0s" desc:"how long after its start the process is not ready while files are missing, for several replicas: another one serves them"`
	TrustedProxies  []netip.Prefix `split_words:"true" desc:"prefixes whose X-Forwarded-For is believed and appended to; overwritten for all others"`
	PublicAddresses []netip.Addr   `split_words:"true" desc:"addresses of the service, to recognize a backend that leads back here"`
	CatchAnswers    bool           `split_words:"true" default:"false" desc:"take every UDP datagram that comes in for another host, so that answers to machines reach tftp routes with source: transparent; for a pod's own network only (docs/tftp.md)"`
	DrainGrace      time.Duration  `split_words:"true" default:"5s" desc:"after SIGTERM, how long new connections are still taken"`
	DrainTimeout    time.Duration  `split_words:"true" default:"30s" desc:"after that, how long what is open may go on"`
	feed.Destination
}

// Removed implements the list that daemon.ParseEnv asks for.
func (c *config) Removed() map[string]string {
	const (
		https = "write the https route into " + prefix + "_ROUTES_FILE (docs/stack-proxy.md#tinkerbell)"
		host  = prefix + "_TINKERBELL is the host of all of Tinkerbell; write several into " + prefix + "_ROUTES_FILE"
		boots = "stack-boots shows boots now, a program of its own: " + prefix + "_BOOTS_ADDRESS is where it hears of them"
	)
	return map[string]string{
		"CERTIFICATE_FILE": https, "KEY_FILE": https, "TINKERBELL_CA": https, "TINKERBELL_NAME": https,
		"BOOTS": boots, "BOOTS_SOCKET": boots, "BOOTS_POD": boots, "BOOTS_REPLICAS": boots, "BOOTS_RELAY": boots,
		"BOOTS_MEMORY": boots, "BOOTS_KUBERNETES": boots, "BOOTS_NAMESPACES": boots,
		"BOOTS_MACHINES": boots, "BOOTS_EACH": boots, "BOOTS_ANSWERS": boots, "BOOTS_LINES": boots,
		"RESOLV_CONF":    "leave it out: name servers are those of /etc/resolv.conf",
		"LISTEN_ADDRESS": "a route's listen takes an address: listen: \"192.0.2.2:69\"",
		"HEGEL":          host, "TINK_SERVER": host, "SMEE": host,
		"ZONE": "endpoints of all zones are chosen in turn",
	}
}

// Validate implements the check that daemon.ParseEnv asks for.
func (c *config) Validate() error {
	var faults []error
	fault := func(variable, format string, args ...any) {
		faults = append(faults, fmt.Errorf(prefix+"_"+variable+"="+format, args...))
	}
	if c.Preset != "" && !slices.Contains(route.Presets(), c.Preset) {
		fault("PRESET", "%q: none of %s", c.Preset, strings.Join(route.Presets(), ", "))
	}
	if err := route.CheckHost(c.Tinkerbell); c.Tinkerbell != "" && err != nil {
		fault("TINKERBELL", "%q: %w", c.Tinkerbell, err)
	}
	if _, port, err := net.SplitHostPort(c.AdminAddress); err != nil {
		fault("ADMIN_ADDRESS", "%w", err)
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		fault("ADMIN_ADDRESS", "%q: %q is no port", c.AdminAddress, port)
	}
	notNegative := func(variable string, d time.Duration) {
		if d < 0 {
			fault(variable, "%s: below 0", d)
		}
	}
	notNegative("ARTIFACTS_WAIT", c.ArtifactsWait)
	notNegative("DRAIN_GRACE", c.DrainGrace)
	notNegative("DRAIN_TIMEOUT", c.DrainTimeout)
	for _, prefix := range c.TrustedProxies {
		if prefix.Bits() == 0 || slices.ContainsFunc(c.PublicAddresses, prefix.Contains) {
			fault("TRUSTED_PROXIES", "%s: machines are in it, and each could pass for any other: "+
				"name the outer proxy's own addresses", prefix)
		}
	}
	return errors.Join(append(faults, c.Check(prefix))...)
}

// errNoPreset: the proxy does not guess which layout of Tinkerbell is behind it, since the layouts share ports and
// differ in others.
var errNoPreset = errors.New(prefix + "_PRESET is not set: set it to tinkerbell for the one Tinkerbell binary " +
	"(0.23 or later), tinkerbell-0.22 for an earlier one, or classic for Hegel, Tink Server and Smee, or set " +
	prefix + "_ROUTES_FILE")

// defaults are what the settings mean for routes.
func (c *config) defaults() route.Defaults {
	return route.Defaults{
		Tinkerbell:     c.Tinkerbell,
		FilesDirectory: c.FilesDirectory,
		Admin:          c.admin(),
		Trusted:        c.TrustedProxies,
		Drain:          setting.Duration(c.DrainTimeout),
	}
}

// admin is where the admin port is going to be; invalid where the start will say what is wrong with it.
func (c *config) admin() netip.AddrPort {
	addr, err := net.ResolveTCPAddr("tcp", c.AdminAddress)
	if err != nil {
		return netip.AddrPort{}
	}
	return addr.AddrPort()
}

// table reads the routes: the file's where there is one, else the preset's. Files that are still being fetched are
// no reason to keep the other routes from their clients.
func (c *config) table() (t route.Table, err error) {
	switch {
	case c.RoutesFile != "":
		t, err = route.Load(c.RoutesFile, c.defaults())
	case c.Preset == "":
		err = errNoPreset
	default:
		t, err = route.Preset(c.Preset, c.defaults())
	}
	if err != nil {
		return t, err
	}
	for i := range t.Routes {
		if c.ArtifactsFile != "" && t.Routes[i].Protocol == route.Files {
			t.Routes[i].Optional = true
		}
	}
	return t, nil
}
