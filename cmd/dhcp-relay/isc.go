package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// iscFlags are the arguments of ISC dhcrelay 4.4 that map: each is followed by the value of a setting, or means one.
var iscFlags = map[string]struct {
	set string
	to  string // the value, where none follows
}{
	"-id": {set: "LISTENERS"},
	"-iu": {set: "UPSTREAM"},
	// dhcrelay makes this interface's address giaddr, and turns option 82 on with the client side's address in link
	// selection. Here that part is left out where the listener has no address that others know.
	"-U": {set: "UPSTREAM"},
	"-c": {set: "MAX_HOPS"},
	"-a": {set: "AGENT_OPTIONS", to: "circuit-id"},
	"-g": {set: "CLEAR_GIADDR", to: "true"},
}

// iscNothing are arguments that ask for the behaviour that dhcp-relay has without them.
var iscNothing = []string{"-D", "-d", "-q", "-4", "--no-pid"}

// isISC tells whether the arguments are those of dhcrelay: our own are a few long flags and subcommands.
func isISC(args []string) bool {
	own := []string{"-version", "--version", "-h", "-help", "--help", traceCommand}
	return len(args) > 0 && !slices.ContainsFunc(args, func(arg string) bool { return slices.Contains(own, arg) })
}

// fromISC translates the command line of ISC dhcrelay into settings (without prefix), and refuses what does not map.
func fromISC(args []string) (map[string]string, error) {
	set := map[string]string{}
	var servers []string
	var faults []error
	for i := 0; i < len(args); i++ {
		arg := args[i]
		flag, known := iscFlags[arg]
		value := flag.to
		switch {
		case !strings.HasPrefix(arg, "-"):
			servers = append(servers, arg)
			continue
		case slices.Contains(iscNothing, arg):
			continue
		case arg == "-m" && i+1 < len(args) && args[i+1] == "forward": // the same
			i++
			continue
		case !known:
			faults = append(faults, fmt.Errorf("%s: not supported (docs/dhcp-relay.md has the settings)", arg))
			continue
		case value == "":
			if i++; i == len(args) {
				return nil, errors.Join(append(faults, fmt.Errorf("%s: needs a value", arg))...)
			}
			value = args[i]
		}
		switch before := set[flag.set]; {
		case before == "" || arg == "-c" || before == value:
			set[flag.set] = value
		case arg == "-id":
			set[flag.set] += "," + value
		case arg == "-iu" || arg == "-U":
			faults = append(faults, fmt.Errorf("%s %s: giaddr is an address of one interface", arg, value))
		}
	}
	if slices.Contains(args, "-U") {
		set["AGENT_OPTIONS"] = "circuit-id,link-selection"
	}
	if len(servers) > 0 {
		set["SERVERS"] = strings.Join(servers, ",")
	}
	return set, errors.Join(faults...)
}
