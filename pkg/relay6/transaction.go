package relay6

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"

	"github.com/tinkerbell/stack/pkg/dhcp6"
)

// logMessage writes the line of a transaction: of a relay message. It runs at debug only and may allocate.
func (r *Relay) logMessage(what, listener string, m dhcp6.Message) {
	client, around := m.Innermost()
	args := []any{
		"listener", listener,
		"type", client.Type().String(),
		"xid", fmt.Sprintf("%06x", client.XID()),
		"peer", netip.AddrFrom16(m.Peer()).String(),
		"link_address", netip.AddrFrom16(m.Link()).String(),
	}
	if mac, found := around.ClientLinkAddr(); found {
		args = append(args, "mac", net.HardwareAddr(mac[:]).String())
	}
	if duid, found := client.Option(dhcp6.OptionClientID); found {
		args = append(args, "duid", hex.EncodeToString(duid))
	}
	if arch, found := client.Option(dhcp6.OptionClientArch); found && len(arch) >= 2 {
		args = append(args, "arch", binary.BigEndian.Uint16(arch))
	}
	if url, found := client.Option(dhcp6.OptionBootFileURL); found {
		args = append(args, "boot_file", string(url))
	}
	r.logger.Debug(what, args...) //nolint:sloglint // constants of the callers
}
