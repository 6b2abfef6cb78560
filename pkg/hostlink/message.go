package hostlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// request makes a request with a header and attributes.
func request(kind, flags int, header nl.NetlinkRequestData, attrs ...*nl.RtAttr) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(kind, flags)
	r.AddData(header)
	for _, attr := range attrs {
		r.AddData(attr)
	}
	return r
}

func uint32Attr(kind, n int) *nl.RtAttr { return nl.NewRtAttr(kind, nl.Uint32Attr(uint32(n))) }

// getLink asks for one link of the namespace nsid, by index or by a naming attribute.
func getLink(nsid, index int, name ...*nl.RtAttr) *nl.NetlinkRequest {
	info := nl.NewIfInfomsg(unix.AF_UNSPEC)
	info.Index = int32(index)
	return request(unix.RTM_GETLINK, unix.NLM_F_ACK, info, append(name, uint32Attr(unix.IFLA_TARGET_NETNSID, nsid))...)
}

// newListener makes a link in the own namespace whose parent is in the namespace nsid.
func newListener(name string, kind Kind, mac net.HardwareAddr, nsid int, parent Link) *nl.NetlinkRequest {
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated(kind.String()))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	if kind == Macvlan {
		data.AddRtAttr(nl.IFLA_MACVLAN_MODE, nl.Uint32Attr(nl.MACVLAN_MODE_BRIDGE))
	} else {
		data.AddRtAttr(nl.IFLA_IPVLAN_MODE, nl.Uint16Attr(uint16(netlink.IPVLAN_MODE_L2)))
	}
	attrs := []*nl.RtAttr{
		nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)), uint32Attr(unix.IFLA_LINK, parent.Index),
		uint32Attr(unix.IFLA_LINK_NETNSID, nsid), uint32Attr(unix.IFLA_MTU, parent.MTU), info,
	}
	if kind == Macvlan && mac != nil {
		attrs = append(attrs, nl.NewRtAttr(unix.IFLA_ADDRESS, mac))
	}
	return request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, nl.NewIfInfomsg(unix.AF_UNSPEC),
		attrs...)
}

// link executes a request for one link. A link that is not there is [errNoLink].
func (c *conn) link(request *nl.NetlinkRequest) (Link, error) {
	messages, err := c.do(request, unix.RTM_NEWLINK)
	switch {
	case errors.Is(err, unix.ENODEV):
		return Link{}, errNoLink
	case err != nil:
		return Link{}, err
	case len(messages) != 1:
		return Link{}, errNoLink
	}
	return parseLink(messages[0])
}

// errNoLink is the answer for a link that does not exist.
var errNoLink = errors.New("no such interface")

// dumpLinks asks for all links of the namespace nsid, dumpAddresses for all addresses of one family.
func dumpLinks(nsid int) *nl.NetlinkRequest {
	node := uint32Attr(unix.IFLA_TARGET_NETNSID, nsid)
	return request(unix.RTM_GETLINK, unix.NLM_F_DUMP, nl.NewIfInfomsg(unix.AF_UNSPEC), node)
}

func dumpAddresses(nsid, family int) *nl.NetlinkRequest {
	node := uint32Attr(unix.IFA_TARGET_NETNSID, nsid)
	return request(unix.RTM_GETADDR, unix.NLM_F_DUMP, nl.NewIfAddrmsg(family), node)
}

// dump executes a dump; one that was interrupted by a change is begun anew.
func (c *conn) dump(request func() *nl.NetlinkRequest, answer uint16) ([][]byte, error) {
	const tries = 8
	for try := 1; ; try++ {
		messages, err := c.do(request(), answer)
		if errors.Is(err, nl.ErrDumpInterrupted) && try < tries {
			continue
		}
		return messages, err
	}
}

// links lists the links of the namespace nsid.
func (c *conn) links(nsid int) ([]Link, error) {
	messages, err := c.dump(func() *nl.NetlinkRequest { return dumpLinks(nsid) }, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(messages))
	for _, message := range messages {
		link, err := parseLink(message)
		if err != nil {
			return nil, err
		}
		links = append(links, link)
	}
	return links, nil
}

// parseLink reads an RTM_NEWLINK message.
func parseLink(message []byte) (Link, error) {
	if len(message) < unix.SizeofIfInfomsg {
		return Link{}, fmt.Errorf("failed to read link: %d bytes", len(message))
	}
	info := nl.DeserializeIfInfomsg(message)
	link, err := netlink.LinkDeserialize(nil, message)
	if err != nil {
		return Link{}, fmt.Errorf("failed to read link: %w", err)
	}
	attrs := link.Attrs()
	received := uint64(0)
	if attrs.Statistics != nil {
		received = attrs.Statistics.RxPackets
	}
	ipvlan, ok := link.(*netlink.IPVlan)
	return Link{
		Index: attrs.Index, Name: attrs.Name, AltNames: attrs.AltNames, Kind: link.Type(), MAC: attrs.HardwareAddr,
		MTU: attrs.MTU, Up: attrs.RawFlags&unix.IFF_UP != 0, Carrier: attrs.RawFlags&unix.IFF_LOWER_UP != 0,
		ethernet: info.Type == unix.ARPHRD_ETHER, loopback: attrs.RawFlags&unix.IFF_LOOPBACK != 0,
		master: attrs.MasterIndex, lower: attrs.ParentIndex, lowerNS: attrs.NetNsID,
		received: received,
		layer3:   ok && ipvlan.Mode != netlink.IPVLAN_MODE_L2,
	}, nil
}

// address is an address of a link, 4 or 16 bytes.
type address struct {
	link int
	ip   net.IP
}

// addresses lists the addresses of the namespace nsid.
func (c *conn) addresses(nsid int) ([]address, error) {
	var all []address
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		messages, err := c.dump(func() *nl.NetlinkRequest { return dumpAddresses(nsid, family) }, unix.RTM_NEWADDR)
		if err != nil {
			return nil, err
		}
		for _, message := range messages {
			found, err := parseAddress(message)
			if err != nil {
				return nil, err
			}
			all = append(all, found)
		}
	}
	return all, nil
}

// parseAddress reads an RTM_NEWADDR message. The own address is IFA_LOCAL where there is one: IFA_ADDRESS is then
// the peer's.
func parseAddress(message []byte) (address, error) {
	if len(message) < unix.SizeofIfAddrmsg {
		return address{}, fmt.Errorf("failed to read address: %d bytes", len(message))
	}
	attrs, err := nl.ParseRouteAttr(message[unix.SizeofIfAddrmsg:])
	if err != nil {
		return address{}, fmt.Errorf("failed to read address: %w", err)
	}
	found := address{link: int(binary.NativeEndian.Uint32(message[4:8]))}
	for _, attr := range attrs {
		switch attr.Attr.Type {
		case unix.IFA_LOCAL:
			found.ip = attr.Value
			return found, nil
		case unix.IFA_ADDRESS:
			found.ip = attr.Value
		}
	}
	return found, nil
}
