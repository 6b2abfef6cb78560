package port

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// poll is how often the relay's counters are looked at.
const poll = 250 * time.Millisecond

// probeMAC is locally administered: no machine has it.
var probeMAC = net.HardwareAddr{0x02, 0x73, 0x74, 0x61, 0x63, 0x6b}

// dhcp sends an INFORM (RFC 2131 section 4.4.3) for a machine that does not exist. A server answers those that it
// knows, so an answer is welcome and not expected: what has to move is the relay's counter of informs sent to the
// server, on any of the addresses that the metrics' host has.
func (c Check) dhcp(ctx context.Context) (string, error) {
	metrics := c.url.Query().Get("metrics")
	if metrics == "" {
		return "", errors.New("failed to check relay: no ?metrics=URL of its counters")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp4", c.url.Host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	local := netip.MustParseAddrPort(conn.LocalAddr().String()).Addr()
	before, err := informs(ctx, metrics)
	if err != nil {
		return "", err
	}
	for ctx.Err() == nil {
		message, err := inform(local)
		if err != nil {
			return "", err
		}
		if _, err := conn.Write(message); err != nil {
			return "", fmt.Errorf("failed to send inform: %w", err)
		}
		for until := time.Now().Add(retry); time.Now().Before(until) && ctx.Err() == nil; {
			select {
			case <-ctx.Done():
			case <-time.After(poll):
			}
			if after, err := informs(ctx, metrics); err == nil && after > before {
				return "the relay passed a request on", nil
			}
		}
	}
	return "", errors.New("failed to have a request relayed: the relay's counter of informs did not move")
}

// inform is the message, for a machine at an address.
func inform(client netip.Addr) ([]byte, error) {
	m, err := dhcpv4.NewInform(probeMAC, client.AsSlice())
	if err != nil {
		return nil, fmt.Errorf("failed to make inform: %w", err)
	}
	return m.ToBytes(), nil
}

// informs adds up, over the addresses of the metrics' host, how many informs were sent to a server.
func informs(ctx context.Context, metrics string) (float64, error) {
	u, err := url.Parse(metrics)
	if err != nil {
		return 0, fmt.Errorf("failed to parse metrics address: %w", err)
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		return 0, fmt.Errorf("failed to look up relay: %w", err)
	}
	total := 0.0
	for _, addr := range addrs {
		one := *u
		one.Host = net.JoinHostPort(addr.Unmap().String(), u.Port())
		text, err := body(ctx, one.String())
		if err != nil {
			return 0, err
		}
		total += sum(text, "dhcp_relay_packets_total", `direction="to-server"`, `type="inform"`)
	}
	return total, nil
}

// sum adds up a metric's samples that have all the labels.
func sum(text, metric string, labels ...string) float64 {
	total := 0.0
next:
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, metric+"{")
		if !ok {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(rest, label) {
				continue next
			}
		}
		if fields := strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:]); len(fields) > 0 {
			if value, err := strconv.ParseFloat(fields[0], 64); err == nil {
				total += value
			}
		}
	}
	return total
}
