package main

import (
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/doctor"
	"github.com/tinkerbell/stack/pkg/doctor/offer"
	"github.com/tinkerbell/stack/pkg/doctor/port"
)

// settings are what the environment sets, and flags.
type settings struct {
	daemon.Settings
	Interface     string        `desc:"interface on the machines' network"`
	MAC           string        `desc:"MAC of a machine that the DHCP server knows; empty: one that no machine has"`
	Arch          string        `default:"uefi" desc:"firmware to ask as: bios, uefi, http, arm64, arm64-http, ia32, riscv64"`
	Service       string        `desc:"address of the stack, which tells a silent server from a wrong VLAN"`
	CA            string        `desc:"file with the CAs that machines trust, in PEM"`
	IPv6          bool          `desc:"ask over IPv6 alone: without it that is done where DHCPv4 is silent"`
	Bundle        string        `desc:"file to make for a bug report (tar.gz): packets, versions, settings, findings and logs, with secrets taken out"`
	Logs          []string      `desc:"files with logs that go into the bundle, separated by commas"`
	JSON          bool          `desc:"write the result as JSON"`
	Timeout       time.Duration `default:"60s" desc:"how long everything may take"`
	KubeService   string        `split_words:"true" desc:"Service of the stack in Kubernetes, namespace/name: looks at it, at what is behind it and at Hardware, by the pod's service account"`
	KubePods      string        `split_words:"true" default:"app.kubernetes.io/name=stack" desc:"label selector of the stack's pods"`
	KubeBackends  []string      `split_words:"true" desc:"namespaces of Tinkerbell's services, Hardware and Workflow objects, separated by commas"`
	KubeAdminPort int           `split_words:"true" default:"9069" desc:"admin port of stack-proxy in these pods; 0: it is not asked"`
	Checks        []string      `desc:"ask these ports and no network: name=http://host:port/path, https://host:port/path?host=name, tcp://host:port, grpc://host:port, tftp://host:port/file, dhcp://host:port?metrics=URL, trust://host:port/path?machine=address&through=host:port; separated by spaces or commas"`
}

// checks parses the list of ports.
func (s *settings) checks() ([]port.Check, error) {
	var all []port.Check
	var faults []error
	for _, text := range port.Split(s.Checks) {
		one, err := port.Parse(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("STACK_DOCTOR_CHECKS: %w", err))
			continue
		}
		all = append(all, one)
	}
	return all, errors.Join(faults...)
}

// Validate implements the check of pkg/daemon.
func (s *settings) Validate() error {
	_, err := s.checks()
	return err
}

// options are what the doctor is told.
func (s *settings) options() (o doctor.Options, err error) {
	if s.Interface == "" && s.KubeService == "" {
		return o, errors.New("--interface: name the interface on the machines' network")
	}
	if s.KubeService != "" {
		if o.Beside, err = s.cluster(); err != nil {
			return o, err
		}
	}
	o.Interface = s.Interface
	if o.Arch, err = offer.ArchNamed(s.Arch); err != nil {
		return o, fmt.Errorf("--arch: %w", err)
	}
	if o.IPv6 = s.IPv6; o.IPv6 && o.Arch.Machine == 0 {
		return o, fmt.Errorf("--ipv6: %s does not boot over IPv6", s.Arch)
	}
	if s.MAC != "" {
		if o.MAC, err = net.ParseMAC(s.MAC); err != nil || len(o.MAC) != 6 || o.MAC[0]&1 != 0 {
			return o, fmt.Errorf("--mac: %q is no Ethernet address of a station", s.MAC)
		}
	}
	if s.Service != "" {
		if o.Service, err = netip.ParseAddr(s.Service); err != nil {
			return o, fmt.Errorf("--service: %w", err)
		}
	}
	if s.CA != "" {
		text, err := os.ReadFile(s.CA)
		if err != nil {
			return o, fmt.Errorf("--ca: %w", err)
		}
		o.CA = x509.NewCertPool()
		if !o.CA.AppendCertsFromPEM(text) {
			return o, fmt.Errorf("--ca: %s holds no certificate", s.CA)
		}
	}
	return o, nil
}

// flags are the settings that a person gives by flags.
type flags struct {
	set  *flag.FlagSet
	over func(*settings) // takes those that were given
}

func newFlags() *flags {
	set := flag.NewFlagSet("stack-doctor", flag.ContinueOnError)
	var given settings
	texts := map[string]struct {
		to   func(*settings) *string
		desc string
	}{
		"interface": {func(s *settings) *string { return &s.Interface }, "`interface` on the machines' network"},
		"mac":       {func(s *settings) *string { return &s.MAC }, "`MAC` of a machine that the DHCP server knows"},
		"arch": {func(s *settings) *string { return &s.Arch }, "`firmware` to ask as: bios, uefi, http, arm64, " +
			"... (default uefi)"},
		"service": {func(s *settings) *string { return &s.Service }, "`address` of the stack"},
		"ca":      {func(s *settings) *string { return &s.CA }, "`file` with the CAs that machines trust"},
		"bundle":  {func(s *settings) *string { return &s.Bundle }, "`file` to make for a bug report (tar.gz)"},
	}
	for name, text := range texts {
		set.StringVar(text.to(&given), name, "", text.desc)
	}
	logs := ""
	set.StringVar(&logs, "logs", "", "`files` with logs that go into the bundle, separated by commas")
	set.BoolVar(&given.IPv6, "ipv6", false, "ask over IPv6 alone")
	set.BoolVar(&given.JSON, "json", false, "write the result as JSON")
	set.DurationVar(&given.Timeout, "timeout", 0, "how long everything may take (default 1m)")
	return &flags{set: set, over: func(s *settings) {
		set.Visit(func(f *flag.Flag) {
			switch f.Name {
			case "ipv6":
				s.IPv6 = given.IPv6
			case "logs":
				s.Logs = strings.Split(logs, ",")
			case "json":
				s.JSON = given.JSON
			case "timeout":
				s.Timeout = given.Timeout
			default:
				if text, ok := texts[f.Name]; ok {
					*text.to(s) = *text.to(&given)
				}
			}
		})
	}}
}
