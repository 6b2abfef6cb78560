package relay

import (
	"cmp"
	"fmt"
	"net"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// logMessage writes the line of a transaction. It runs at debug only and may allocate. What the library cannot read, as
// BOOTP or options without an END, is described by the fixed fields alone.
func (r *Relay) logMessage(what, listener string, m dhcp.Message, more ...any) {
	chaddr := m.Chaddr()
	args := []any{
		"listener", listener,
		"type", m.Type().String(),
		"xid", fmt.Sprintf("%08x", m.XID()),
		"chaddr", net.HardwareAddr(chaddr[:min(m.HLen(), 16)]).String(),
	}
	if said, err := dhcpv4.FromBytes(m); err == nil {
		if arches := said.ClientArch(); len(arches) > 0 {
			args = append(args, "arch", arches[0].String())
		}
		if class := said.ClassIdentifier(); class != "" {
			args = append(args, "vendor_class", class)
		}
		if classes := said.UserClass(); len(classes) > 0 {
			args = append(args, "user_class", strings.Join(classes, ", "))
		}
		if m.Op() == dhcp.Reply {
			args = append(args, "boot_file", cmp.Or(said.BootFileNameOption(), said.BootFileName))
		}
	}
	if m.Op() == dhcp.Reply {
		args = append(args, "yiaddr", dhcp.Addr(m.Yiaddr()).String(), "next_server", dhcp.Addr(m.Siaddr()).String())
	}
	r.logger.Debug(what, append(args, more...)...) //nolint:sloglint // constants of the callers
}
