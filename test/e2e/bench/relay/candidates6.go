package relay

import "os/exec"

// OursTrusting is ours with TRUSTED_RELAYS, so that relays on the LAN may speak for machines behind them.
const OursTrusting = "ours-trusting"

// Probed6 are the candidates of [Differential6]; what is measured are Candidates6.
var Probed6 = []string{Ours, OursTrusting, ISC, Dnsmasq}

// command6 starts a candidate as a DHCPv6 relay.
func command6(candidate string, o Options, found map[string]string) *exec.Cmd {
	switch candidate {
	case Ours, OursTrusting:
		c := exec.Command(o.Relay)
		c.Env = []string{
			"DHCP_RELAY_LISTENERS=" + lanLink, "DHCP_RELAY_LOG_LEVEL=warn", "DHCP_RELAY_ADMIN_ADDRESS=127.0.0.1:9067",
			"DHCP_RELAY_DHCPV6_ENABLED=true", "DHCP_RELAY_DHCPV6_SERVERS=" + serverIP6,
		}
		if candidate == OursTrusting {
			c.Env = append(c.Env, "DHCP_RELAY_TRUSTED_RELAYS=fe80::/10,2001:db8::/32")
		}
		return c
	case ISC:
		return exec.Command(found["dhcrelay"], "-d", "-q", "-6", "-l", lanLink, "-u", serverIP6+"%"+upLink)
	case Dnsmasq:
		return exec.Command(found["dnsmasq"], "--no-daemon", "--conf-file=/dev/null", "--port=0",
			"--log-facility=/dev/null", "--user=root", "--dhcp-relay="+relayLAN6+","+serverIP6)
	}
	return nil
}
