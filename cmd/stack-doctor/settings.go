package main

import (
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/doctor"
	"github.com/tinkerbell/stack/pkg/doctor/offer"
	"github.com/tinkerbell/stack/pkg/doctor/port"
)

// settings are what flags and arguments say.
type settings struct {
	options doctor.Options
	checks  []port.Check // ports to ask in place of a network
	timeout time.Duration
	json    bool
	version bool
}

// parse reads flags and arguments. It is [flag.ErrHelp] where help was asked for, which goes to stdout; any other error
// names every fault.
func parse(args []string, stdout io.Writer) (*settings, error) {
	s := &settings{}
	o := &s.options
	var faults []error
	flags := flag.NewFlagSet("stack-doctor", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&o.Interface, "interface", "", "`interface` on the machines' network")
	o.Arch, _ = offer.ArchNamed("uefi")
	flags.Func("arch", "`firmware` to ask as: bios, uefi, http, arm64, arm64-http, ia32, riscv64 (default uefi)",
		func(text string) (err error) {
			o.Arch, err = offer.ArchNamed(text)
			return err
		})
	flags.Func("mac", "`MAC` of a machine that the DHCP server knows; without it: one that no machine has",
		func(text string) (err error) {
			if o.MAC, err = net.ParseMAC(text); err != nil || len(o.MAC) != 6 || o.MAC[0]&1 != 0 {
				return fmt.Errorf("%q is no Ethernet address of a station", text)
			}
			return nil
		})
	flags.Func("service", "`address` of the stack, which tells a silent server from a wrong VLAN",
		func(text string) (err error) {
			o.Service, err = netip.ParseAddr(text)
			return err
		})
	flags.Func("ca", "`file` with the CAs that machines trust, in PEM", func(path string) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		o.CA = x509.NewCertPool()
		if !o.CA.AppendCertsFromPEM(text) {
			return fmt.Errorf("%s holds no certificate", path)
		}
		return nil
	})
	flags.BoolVar(&s.json, "json", false, "write the result as JSON")
	flags.DurationVar(&s.timeout, "timeout", time.Minute, "how long everything may take")
	flags.BoolVar(&s.version, "version", false, "print the build and exit")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(stdout, "stack-doctor: "+summary+"\n\nFlags:\n")
			flags.SetOutput(stdout)
			flags.PrintDefaults()
			fmt.Fprint(stdout, "\n"+notes+"\n")
		}
		return nil, err
	}
	for _, text := range port.Split(flags.Args()) {
		check, err := port.Parse(text)
		if err != nil {
			faults = append(faults, err)
		}
		s.checks = append(s.checks, check)
	}
	switch {
	case s.version:
	case o.Interface == "" && flags.NArg() == 0:
		faults = append(faults, errors.New("--interface: name the interface on the machines' network"))
	case o.Interface != "" && flags.NArg() > 0:
		faults = append(faults, fmt.Errorf("%q: ports are asked without --interface", strings.Join(flags.Args(), " ")))
	}
	return s, errors.Join(faults...)
}
