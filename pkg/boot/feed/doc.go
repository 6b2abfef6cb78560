// Package feed brings events of boots from dhcp-relay and stack-proxy to stack-boots, and into the order of their
// times.
//
// A program posts its events by HTTP over TCP, or over a Unix socket in a directory that only the stack's programs
// mount: a line of JSON that says who it is and where it is (head), then the events one after the other as [boot.Event]
// encodes them. Each post waits for its answer.
//
// Over TCP, TLS holds both ends to the key that they share (identity.go): without it nobody is believed, and what was
// recorded is worth nothing at another time or place.
//
// No program ever waits for stack-boots: what finds no room in the sender's queue is dropped and counted, and the count
// is told. What was sent and not answered is sent again, and taken once.
package feed

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"
)

// PollEvery is how often queues are looked into: no packet wakes their readers.
const PollEvery = 100 * time.Millisecond

// networkOf is the kind of an address: a path is of a Unix socket, all else is host:port.
func networkOf(address string) string {
	if strings.HasPrefix(address, "/") {
		return "unix"
	}
	return "tcp"
}

// Destination is where a program tells of boots, for its settings to embed.
type Destination struct {
	BootsAddress string `split_words:"true" desc:"where stack-boots hears of machines that boot: host:port, or the path of its Unix socket; default it is not told (docs/boots.md)"`
	BootsKeyFile string `split_words:"true" desc:"file with the key that stack-boots has too, at least 16 bytes; needed for host:port"`
}

// Check finds a destination that cannot be. Prefix begins the names of the program's variables.
func (d Destination) Check(prefix string) error {
	return CheckAddress(prefix+"_BOOTS_ADDRESS", d.BootsAddress, prefix+"_BOOTS_KEY_FILE", d.BootsKeyFile)
}

// CheckAddress finds an address that cannot be, or that needs a key and has none. Each is named by its variable.
func CheckAddress(variable, address, keyVariable, keyFile string) error {
	if address == "" && keyFile == "" || address != "" && networkOf(address) == "unix" {
		return nil
	}
	if address == "" {
		return fmt.Errorf("%s=%q: goes with %s", keyVariable, keyFile, variable)
	}
	if _, port, err := net.SplitHostPort(address); err != nil || port == "" {
		return fmt.Errorf("%s=%q: neither host:port nor the path of a Unix socket", variable, address)
	}
	if keyFile == "" {
		return fmt.Errorf("%s=%q: whoever reaches it would be believed: set %s", variable, address, keyVariable)
	}
	return nil
}

// remove takes away a socket that nobody has any more, and nothing else.
func remove(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("failed to look for the socket of boots: %w", err)
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("failed to open the socket of boots: %s is there, and is no socket", path)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("failed to replace the socket of boots: %w", err)
	}
	return nil
}
