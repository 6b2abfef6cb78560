package relay

import (
	"maps"
	"os/exec"
	"slices"
)

// Names of the candidates.
const (
	Ours       = "ours"
	OursBoots  = "ours-boots" // with BOOTS_ADDRESS, where this process hears
	ISC        = "isc-dhcrelay"
	Dnsmasq    = "dnsmasq"
	DHCPHelper = "dhcp-helper"
)

// Candidates are the programs; what is measured has ours twice, in the order of the report.
var (
	Candidates = []string{Ours, ISC, Dnsmasq, DHCPHelper}
	measured   = []string{Ours, ISC, Dnsmasq, DHCPHelper}
	compared   = []string{Ours, OursBoots}
	// Candidates6 are those that relay DHCPv6.
	Candidates6 = []string{Ours, ISC, Dnsmasq}
)

// candidates are what is measured in a case.
func (c Case) candidates() []string {
	if c.IPv6 {
		return Candidates6
	}
	return measured
}

// command starts a candidate for a case.
func (c Case) command(candidate string, o Options, found map[string]string) *exec.Cmd {
	if path, ok := o.Builds[candidate]; ok {
		candidate, o.Relay = Ours, path
	}
	if c.IPv6 {
		return command6(candidate, o, found)
	}
	return command(candidate, o, found)
}

// server is the address of the server that the case's candidates ask.
func (c Case) server() string {
	if c.IPv6 {
		return serverIP6
	}
	return serverIP
}

// command starts a candidate.
func command(candidate string, o Options, found map[string]string) *exec.Cmd {
	switch candidate {
	case Ours, OursBoots:
		c := exec.Command(o.Relay)
		c.Env = []string{
			"DHCP_RELAY_LISTENERS=" + lanLink, "DHCP_RELAY_SERVERS=" + serverIP, "DHCP_RELAY_LOG_LEVEL=warn",
			"DHCP_RELAY_ADMIN_ADDRESS=127.0.0.1:9067",
		}
		if candidate == OursBoots {
			c.Env = append(c.Env, "DHCP_RELAY_BOOTS_ADDRESS="+o.socket)
		}
		return c
	case ISC: // as the former chart starts it
		return exec.Command(found["dhcrelay"], "-d", "-q", "-4", "-m", "forward", "-c", "10",
			"-id", lanLink, "-iu", upLink, "-U", upLink, serverIP)
	case Dnsmasq:
		return exec.Command(found["dnsmasq"], "--no-daemon", "--conf-file=/dev/null", "--port=0",
			"--log-facility=/dev/null", "--user=root", "--dhcp-relay="+relayLAN+","+serverIP+","+upLink)
	case DHCPHelper:
		return exec.Command(found["dhcp-helper"], "-n", "-u", "root", "-s", serverIP, "-i", lanLink)
	}
	return nil
}

// available are the candidates that can be run.
func available(candidates []string, found map[string]string) []string {
	return slices.DeleteFunc(slices.Clone(candidates), func(c string) bool {
		program := map[string]string{ISC: "dhcrelay", Dnsmasq: "dnsmasq", DHCPHelper: "dhcp-helper"}[c]
		return program != "" && found[program] == ""
	})
}

// candidates are those to measure in a case, in the order of the report.
func (o *Options) candidates(c Case, found map[string]string) []string {
	names := available(c.candidates(), found)
	if o.Boots {
		if names = compared; c.IPv6 {
			return nil
		}
	}
	if len(o.Candidates) > 0 {
		others := func(name string) bool { return !slices.Contains(o.Candidates, name) }
		names = slices.DeleteFunc(slices.Clone(names), others)
	}
	return append(slices.Clip(names), slices.Sorted(maps.Keys(o.Builds))...)
}
