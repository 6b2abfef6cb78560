package main

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/lb/address"
	"github.com/tinkerbell/stack/pkg/lb/elect"
	"github.com/tinkerbell/stack/pkg/lb/service"
)

const (
	prefix       = "STACK_LB"
	defaultAdmin = "127.0.0.1:9071" // as in the tag below
)

// settings is what the environment sets.
type settings struct {
	daemon.Settings
	AdminAddress string `split_words:"true" default:"127.0.0.1:9071" desc:"where /metrics, /healthz, /readyz and /addresses are served"`

	Node           string   `required:"true" desc:"this node's name in Kubernetes"`
	WatchNamespace string   `split_words:"true" desc:"namespace of the Services whose addresses are announced, and of the leases; empty: all namespaces, and the leases in the pod's own, or the kubeconfig's"`
	Services       []string `desc:"their names, separated by commas; empty: all of the class"`
	Kubeconfig     string   `desc:"path of a kubeconfig; empty: the pod's service account"`

	Class     string         `default:"tinkerbell.org/stack-lb" desc:"loadBalancerClass of the Services whose addresses are announced"`
	Mode      string         `default:"announce" desc:"who forwards for Services that do not say: announce (kube-proxy) or proxy (stack-lb's own listeners)"`
	Addresses []netip.Prefix `desc:"prefixes of addresses that Services may ask for, separated by commas; empty: any"`

	LeaseDuration time.Duration `split_words:"true" default:"6s" desc:"how long other nodes wait for a node that has gone, in whole seconds; at least 3s"`
}

var (
	className = regexp.MustCompile(`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	nodeName  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)
)

// times are those of the election.
func (s *settings) times() elect.Times { return elect.TimesFor(s.LeaseDuration, address.KernelDelay) }

// Removed implements the check of pkg/daemon.
func (s *settings) Removed() map[string]string {
	return map[string]string{
		"NAMESPACE":              "leases are in " + prefix + "_WATCH_NAMESPACE, else in the pod's or kubeconfig's own",
		"KEY":                    "without a key, the holder keeps an address that no other has while the API is away",
		"ZONE":                   "endpoints of all zones are chosen in turn",
		"DRAIN_TIMEOUT":          "open connections end when a Service in mode proxy gives up a port",
		"CONNECTIONS":            "connections are as many as memory and descriptors allow",
		"CONNECTIONS_PER_CLIENT": "one client has at most half of what memory and descriptors allow",
		"RENEW_DEADLINE":         "it follows from " + prefix + "_LEASE_DURATION",
		"RETRY_PERIOD":           "it follows from " + prefix + "_LEASE_DURATION",
		"PROBE_INTERVAL":         "the link is asked once a second",
		"ANNOUNCE_INTERVAL":      "an address is announced each 60 s after the first five seconds",
	}
}

// Validate implements the check of pkg/daemon. A fault names the variable that has to be changed.
func (s *settings) Validate() error {
	var faults []error
	fault := func(variable, format string, args ...any) {
		faults = append(faults, fmt.Errorf("%s_%s: %s", prefix, variable, fmt.Sprintf(format, args...)))
	}
	if s.Node != "" && (!nodeName.MatchString(s.Node) || len(s.Node) > 253) {
		fault("NODE", "%q is no name of a node: lower-case letters, digits, - and .", s.Node)
	}
	if s.WatchNamespace != "" && (!nodeName.MatchString(s.WatchNamespace) || strings.Contains(s.WatchNamespace, ".")) {
		fault("WATCH_NAMESPACE", "%q is no name of a namespace: lower-case letters, digits and -", s.WatchNamespace)
	}
	if len(s.Services) > 0 && s.WatchNamespace == "" {
		fault("WATCH_NAMESPACE", "required with %s_SERVICES: where are they?", prefix)
	}
	if !className.MatchString(s.Class) {
		fault("CLASS", "%q is no loadBalancerClass: write it as example.com/name", s.Class)
	}
	if s.Mode != string(service.Announce) && s.Mode != string(service.Proxy) {
		fault("MODE", "%q is no mode: write %s or %s", s.Mode, service.Announce, service.Proxy)
	}
	for _, p := range s.Addresses {
		if p.Masked() != p {
			fault("ADDRESSES", "%s has bits behind its length set: did you mean %s?", p, p.Masked())
		}
	}
	if err := elect.CheckDuration(s.LeaseDuration); err != nil {
		fault("LEASE_DURATION", "%v", err)
	}
	return errors.Join(faults...)
}
