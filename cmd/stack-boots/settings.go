package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tinkerbell/stack/pkg/boot/feed"
	"github.com/tinkerbell/stack/pkg/daemon"
)

// settings is what the environment sets.
type settings struct {
	daemon.Settings
	AdminAddress    string       `split_words:"true" default:":9070" desc:"where pages, API, /metrics, /healthz and /readyz are"`
	ListenAddress   string       `split_words:"true" default:":9072" desc:"where dhcp-relay and stack-proxy tell of boots: host:port, or the path of a Unix socket in a directory that only they mount"`
	KeyFile         string       `split_words:"true" desc:"file with the key that these programs have too, at least 16 bytes; needed for host:port"`
	KeySecret       string       `split_words:"true" desc:"Secret in the pod's own namespace that a key is put into, once, where it has none; KEY_FILE is where the kubelet brings it"`
	Hosts           []string     `desc:"names besides addresses, localhost and those of the cluster by which browsers may ask, such as an Ingress's"`
	Lines           bool         `default:"false" desc:"show syslog lines, which may hold secrets, to everybody who reaches the pages; else only through the loopback interface, as by kubectl port-forward"`
	PublicAddresses []netip.Addr `split_words:"true" desc:"addresses by which machines ask the stack, to recognize that they are sent elsewhere"`
	Memory          int          `default:"64" desc:"MiB that what is kept of machines may take, some 10000 machines in 64; those that were silent longest go first"`
	HistoryFile     string       `split_words:"true" desc:"files that keep the last 16 MiB of what was heard begin with this path, so that a restart forgets nothing; default it forgets"`
	Kubernetes      bool         `default:"false" desc:"watch Hardware objects of Tinkerbell, for names and causes, and write Events on them (docs/boots.md)"`
	Namespaces      []string     `desc:"namespaces of the Hardware objects; default the pod's own"`
}

const (
	defaultAdmin = ":9070" // as in the tag above
	maxMemory    = 1 << 20 // MiB
	// machinesEach is how many machines are kept in a MiB: those of a rack take some 6 KiB each with their boots.
	machinesEach = 160
)

// Validate implements the check of pkg/daemon.
func (s *settings) Validate() error {
	faults := []error{feed.CheckAddress(prefix+"_LISTEN_ADDRESS", s.ListenAddress, prefix+"_KEY_FILE", s.KeyFile)}
	fault := func(variable, format string, args ...any) {
		faults = append(faults, fmt.Errorf(prefix+"_"+variable+"="+format, args...))
	}
	if _, port, err := net.SplitHostPort(s.AdminAddress); err != nil || port == "" {
		fault("ADMIN_ADDRESS", "%q: not host:port", s.AdminAddress)
	}
	for _, host := range s.Hosts {
		if len(validation.IsDNS1123Subdomain(strings.ToLower(host))) > 0 {
			fault("HOSTS", "%q: no name of a host (without scheme, port and path)", host)
		}
	}
	if directory := filepath.Dir(s.HistoryFile); s.HistoryFile != "" {
		if info, err := os.Stat(directory); err != nil || !info.IsDir() {
			fault("HISTORY_FILE", "%q: %s is no directory", s.HistoryFile, directory)
		}
	}
	if s.KeySecret != "" && (s.KeyFile == "" || len(validation.IsDNS1123Subdomain(s.KeySecret)) > 0) {
		fault("KEY_SECRET", "%q: no name of a Secret, or "+prefix+"_KEY_FILE is missing", s.KeySecret)
	}
	if s.Memory < 1 || s.Memory > maxMemory {
		fault("MEMORY", "%d: not within 1 and %d", s.Memory, maxMemory)
	}
	if len(s.Namespaces) > 0 && !s.Kubernetes {
		fault("NAMESPACES", "%q: goes with "+prefix+"_KUBERNETES", s.Namespaces)
	}
	for _, namespace := range s.Namespaces {
		if len(validation.IsDNS1123Label(namespace)) > 0 {
			fault("NAMESPACES", "%q: no name of a namespace", namespace)
		}
	}
	return errors.Join(faults...)
}
