package relay6

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv6"

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
	if said, err := dhcpv6.MessageFromBytes(client); err == nil {
		if duid := said.Options.ClientID(); duid != nil {
			args = append(args, "duid", duid.String())
		}
		if arches := said.Options.ArchTypes(); len(arches) > 0 {
			args = append(args, "arch", arches[0].String())
		}
		if url := said.Options.BootFileURL(); url != "" {
			args = append(args, "boot_file", url)
		}
	}
	r.logger.Debug(what, args...) //nolint:sloglint // constants of the callers
}
