package relay

import (
	"encoding/binary"
	"fmt"
	"net"

	"github.com/tinkerbell/stack/pkg/dhcp"
)

// logMessage writes the line of a transaction. It runs at debug only and may allocate.
func (r *Relay) logMessage(what, listener string, m dhcp.Message, more ...any) {
	chaddr := m.Chaddr()
	args := []any{
		"listener", listener,
		"type", m.Type().String(),
		"xid", fmt.Sprintf("%08x", m.XID()),
		"chaddr", net.HardwareAddr(chaddr[:min(m.HLen(), 16)]).String(),
	}
	if arch, found := m.Option(dhcp.OptionClientArch); found && len(arch) >= 2 {
		args = append(args, "arch", binary.BigEndian.Uint16(arch))
	}
	if class, found := m.Option(dhcp.OptionVendorClass); found {
		args = append(args, "vendor_class", string(class))
	}
	if class, found := m.Option(dhcp.OptionUserClass); found {
		args = append(args, "user_class", string(class))
	}
	if m.Op() == dhcp.Reply {
		file := m.File()
		if option, found := m.Option(dhcp.OptionBootFile); found {
			file = option
		}
		args = append(args, "yiaddr", dhcp.Addr(m.Yiaddr()).String(), "next_server", dhcp.Addr(m.Siaddr()).String(),
			"boot_file", string(file))
	}
	r.logger.Debug(what, append(args, more...)...) //nolint:sloglint // constants of the callers
}
