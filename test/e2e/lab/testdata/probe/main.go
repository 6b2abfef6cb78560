// Command probe tells what a process of the lab may do and sees, as JSON on standard output.
package main

import (
	"encoding/json"
	"net"
	"os"
	"strings"
)

type report struct {
	Status  map[string]string // of /proc/self/status
	Root    []string          // names in /
	Resolv  string
	Own     string // network namespace of the process
	Links   []string
	Write   string // error of writing a file to /
	LowPort string // error of listening on port 69
	Raw     string // error of opening a raw socket
}

func main() {
	r := report{Status: map[string]string{}}
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		r.Status[key] = strings.TrimSpace(value)
	}
	entries, _ := os.ReadDir("/")
	for _, entry := range entries {
		r.Root = append(r.Root, entry.Name())
	}
	resolv, _ := os.ReadFile("/etc/resolv.conf")
	r.Resolv = string(resolv)
	r.Own, _ = os.Readlink("/proc/self/ns/net")
	links, _ := os.ReadDir("/sys/class/net")
	for _, link := range links {
		r.Links = append(r.Links, link.Name())
	}
	r.Write = text(os.WriteFile("/written", nil, 0o600))
	conn, err := net.ListenPacket("udp4", ":69")
	if r.LowPort = text(err); err == nil {
		conn.Close()
	}
	raw, err := net.ListenPacket("ip4:icmp", "0.0.0.0")
	if r.Raw = text(err); err == nil {
		raw.Close()
	}
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		os.Exit(1)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
