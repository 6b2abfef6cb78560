package main

import (
	"errors"
	"fmt"
	"strings"
)

// iscFlag is an argument of ISC dhcrelay 4.4: what it means here, or what to use instead.
type iscFlag struct {
	// value tells that an argument follows.
	value bool
	// set is the variable, and to is its value where none follows.
	set, to string
	// instead refuses the flag, and says what to do.
	instead string
}

// iscFlags are the arguments that users of the incumbent may have.
var iscFlags = map[string]iscFlag{
	"-id": {value: true, set: "LISTENERS"},
	"-iu": {value: true, set: "UPSTREAM_INTERFACE"},
	"-m":  {value: true, set: "PRESENT_GIADDR_ACTION"},
	"-c":  {value: true, set: "MAX_HOPS"},
	"-a":  {set: "AGENT_OPTIONS", to: "circuit-id"},
	// dhcrelay makes this interface's address giaddr, and turns option 82 on with the client side's address in link
	// selection. Here that part is left out where the listener has no address that others know.
	"-U": {value: true, set: "UPSTREAM_INTERFACE"},
	"-g": {set: "CLEAR_GIADDR", to: "true"},
	"-D": {}, // a reply has to match a request, always
	"-p": {value: true, instead: "clients send to port 67 (RFC 2131 section 4.1); only a server may be elsewhere, as " +
		"host:port in SERVERS"},
	"-i":          {value: true, instead: "say which side it is on: -id (clients) or -iu (servers)"},
	"-A":          {value: true, instead: "the limit is the interface's MTU and the client's option 57: leave -A out"},
	"-6":          {instead: "DHCPv6 is relayed beside DHCPv4: DHCPV6_ENABLED"},
	"-I":          {instead: "that is for DHCPv6: every request has the interface-id"},
	"-l":          {value: true, instead: "that is for DHCPv6, whose listeners are those of DHCPv4: -id or LISTENERS"},
	"-u":          {value: true, instead: "that is for DHCPv6: DHCPV6_SERVERS"},
	"-s":          {value: true, instead: "AGENT_OPTIONS=subscriber-id and SUBSCRIBER_ID"},
	"-d":          {},
	"-q":          {},
	"-4":          {},
	"--no-pid":    {},
	"-pf":         {value: true, instead: "it stays in the foreground and writes no pid file: leave -pf out"},
	"--name":      {value: true, instead: "leave it out"},
	"-tf":         {value: true, instead: "dhcp-relay trace writes a pcap"},
	"-nd":         {instead: "leave it out"},
	"--loglevel":  {value: true, instead: "LOG_LEVEL"},
	"--logformat": {value: true, instead: "LOG_FORMAT"},
}

// isISC tells whether the arguments are those of dhcrelay: our own are a few long flags and subcommands.
func isISC(args []string) bool {
	for _, arg := range args {
		switch arg {
		case "-version", "--version", "-h", "-help", "--help", traceCommand:
			return false
		}
	}
	return len(args) > 0
}

// fromISC translates the command line of ISC dhcrelay into settings (without prefix). It refuses what does not map,
// naming every such argument and the setting to use instead.
func fromISC(args []string) (map[string]string, error) {
	set := map[string]string{}
	var servers []string
	var faults []error
	link := false
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if !strings.HasPrefix(arg, "-") {
			servers = append(servers, arg)
			continue
		}
		flag, known := iscFlags[arg]
		if !known {
			faults = append(faults, fmt.Errorf("%s: unknown argument (see dhcp-relay --help)", arg))
			continue
		}
		value := flag.to
		if flag.value {
			if i++; i == len(args) {
				faults = append(faults, fmt.Errorf("%s: needs a value", arg))
				break
			}
			value = args[i]
		}
		switch {
		case arg == "-p" && value == "67":
		case flag.instead != "":
			faults = append(faults, fmt.Errorf("%s: not supported; instead: %s", arg, flag.instead))
		case flag.set == "":
		case flag.set == "LISTENERS" && set["LISTENERS"] != "":
			set["LISTENERS"] += "," + value
		case flag.set == "UPSTREAM_INTERFACE" && set["UPSTREAM_INTERFACE"] != "" && set["UPSTREAM_INTERFACE"] != value:
			faults = append(faults, fmt.Errorf("%s %s: giaddr is an address of one interface; name one in UPSTREAM_INTERFACE",
				arg, value))
		default:
			set[flag.set] = value
		}
		link = link || arg == "-U"
	}
	if link {
		set["AGENT_OPTIONS"] = "circuit-id,link-selection"
	}
	if len(servers) > 0 {
		set["SERVERS"] = strings.Join(servers, ",")
	}
	return set, errors.Join(faults...)
}
