package main

import (
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/tinkerbell/stack/pkg/daemon"
	"github.com/tinkerbell/stack/pkg/doctor"
	"github.com/tinkerbell/stack/pkg/doctor/offer"
	"github.com/tinkerbell/stack/pkg/doctor/port"
)

// settings are what the environment sets, and flags.
type settings struct {
	daemon.Settings
	Interface string        `desc:"interface on the machines' network"`
	MAC       string        `desc:"MAC of a machine that the DHCP server knows; empty: one that no machine has"`
	Arch      string        `default:"uefi" desc:"firmware to ask as: bios, uefi, http, arm64, arm64-http, ia32, riscv64"`
	Service   string        `desc:"address of the stack, which tells a silent server from a wrong VLAN"`
	CA        string        `desc:"file with the CAs that machines trust, in PEM"`
	JSON      bool          `desc:"write the result as JSON"`
	Timeout   time.Duration `default:"60s" desc:"how long everything may take"`
	Checks    []string      `desc:"ask these ports and no network: name=http://host:port/path, https://host:port/path?host=name, tcp://host:port, grpc://host:port, tftp://host:port/file, dhcp://host:port?metrics=URL; separated by spaces or commas"`
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
	if s.Interface == "" {
		return o, errors.New("--interface: name the interface on the machines' network")
	}
	o.Interface = s.Interface
	if o.Arch, err = offer.ArchNamed(s.Arch); err != nil {
		return o, fmt.Errorf("--arch: %w", err)
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
	}
	for name, text := range texts {
		set.StringVar(text.to(&given), name, "", text.desc)
	}
	set.BoolVar(&given.JSON, "json", false, "write the result as JSON")
	set.DurationVar(&given.Timeout, "timeout", 0, "how long everything may take (default 1m)")
	return &flags{set: set, over: func(s *settings) {
		set.Visit(func(f *flag.Flag) {
			switch f.Name {
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
