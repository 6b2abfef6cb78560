package hostlink

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A listener is for packet sockets, which see a frame before the IP layer does. Without further ado the IP layer
// would get it as well: a router advertisement on the provisioning network gives the pod an address and a default
// route, and a machine there reaches every port of the pod past the service and all policies. So nftables drops at
// the first hook of the IP layer whatever comes from the listener. One table per listener; a table of the same name
// is replaced. Where a server hears by a plain socket, DHCP requests alone pass.

// tablePrefix begins the name of every table of ours, which has one chain.
const tablePrefix, chain = "broadcast-init-", "prerouting"

// nfMessage is one message of a batch: its type with subsystem, flags and attributes.
type nfMessage struct {
	kind, flags uint16
	attrs       []*nl.RtAttr
}

// isolate keeps the IP layer from whatever arrives at a listener, but for DHCP requests where they are to pass.
func (h *Host) isolate(listener string, requestsPass bool) *Fault {
	err := h.filterErr
	if err == nil {
		batch := isolation(listener)
		if requestsPass {
			batch = append(batch, ruleBefore(listener, append(requestsFrom(listener), verdict(nfAccept))))
		}
		err = h.filter.do(batch)
	}
	if err == nil {
		return nil
	}
	return &Fault{
		Cause: NotIsolated, Err: err,
		What: fmt.Sprintf("the kernel took no nftables rule that keeps what %s receives from the pod's IP layer", listener),
		Do: "load the module nf_tables on the node; until then a machine on that network can reach the pod's ports, " +
			"and give it an IPv6 address and route",
	}
}

// isolation is the batch that makes a listener's table. It is made, removed and made again, so that removing it
// does not fail the first time.
func isolation(listener string) []nfMessage {
	table := tablePrefix + listener
	const priority = -450 // before defragmentation, which is the first to look at packets
	newTable := nfMessage{unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, []*nl.RtAttr{text(unix.NFTA_TABLE_NAME, table)}}
	return []nfMessage{
		newTable,
		{unix.NFT_MSG_DELTABLE, 0, newTable.attrs},
		newTable,
		{unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, []*nl.RtAttr{
			text(unix.NFTA_CHAIN_TABLE, table), text(unix.NFTA_CHAIN_NAME, chain), text(unix.NFTA_CHAIN_TYPE, "filter"),
			nested(unix.NFTA_CHAIN_HOOK,
				big(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_PRE_ROUTING), big(unix.NFTA_HOOK_PRIORITY, priority)),
		}},
		{unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE | unix.NLM_F_APPEND, []*nl.RtAttr{
			text(unix.NFTA_RULE_TABLE, table), text(unix.NFTA_RULE_CHAIN, chain),
			nested(unix.NFTA_RULE_EXPRESSIONS, append(fromListener(listener), verdict(nfDrop))...),
		}},
	}
}

// Verdicts on a packet (linux/netfilter.h).
const nfDrop, nfAccept = 0, 1

func verdict(code int) *nl.RtAttr {
	return expression("immediate", big(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT),
		nested(unix.NFTA_IMMEDIATE_DATA, nested(unix.NFTA_DATA_VERDICT, big(unix.NFTA_VERDICT_CODE, code))))
}

// ruleBefore makes a rule that stands before those that a listener's table has.
func ruleBefore(listener string, expressions []*nl.RtAttr) nfMessage {
	return nfMessage{unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE, []*nl.RtAttr{
		text(unix.NFTA_RULE_TABLE, tablePrefix+listener), text(unix.NFTA_RULE_CHAIN, chain),
		nested(unix.NFTA_RULE_EXPRESSIONS, expressions...),
	}}
}

// requestsFrom begins a rule for the DHCPv4 requests that come from a listener: ... udp dport 67.
func requestsFrom(listener string) []*nl.RtAttr {
	return append(fromListener(listener),
		expression("meta", big(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO), big(unix.NFTA_META_DREG, unix.NFT_REG_1)),
		equal([]byte{unix.IPPROTO_UDP}),
		expression("payload", big(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1),
			big(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_TRANSPORT_HEADER),
			big(unix.NFTA_PAYLOAD_OFFSET, 2), big(unix.NFTA_PAYLOAD_LEN, 2)),
		equal([]byte{0, 67}))
}

// fromListener begins a rule for what comes from a listener: iifname <listener>.
func fromListener(listener string) []*nl.RtAttr {
	return []*nl.RtAttr{
		expression("meta", big(unix.NFTA_META_KEY, unix.NFT_META_IIFNAME), big(unix.NFTA_META_DREG, unix.NFT_REG_1)),
		equal(ifname(listener)),
	}
}

// equal is the instruction that compares what the one before it has loaded.
func equal(value []byte) *nl.RtAttr {
	return expression("cmp", big(unix.NFTA_CMP_SREG, unix.NFT_REG_1), big(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ),
		nested(unix.NFTA_CMP_DATA, nl.NewRtAttr(unix.NFTA_DATA_VALUE, value)))
}

// deleteTable is the batch that removes a listener's table, whether there is one or not.
func deleteTable(listener string) []nfMessage { return isolation(listener)[:2] }

// reunite undoes isolate, in the calling thread's network namespace. Where there is no nftables there is nothing to
// undo.
func reunite(listeners []string) error {
	filter, err := dialFilter()
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer filter.close()
	for _, listener := range listeners {
		err := filter.do(deleteTable(listener))
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EAFNOSUPPORT) {
			return fmt.Errorf("failed to remove the rule for %s: %w", listener, err)
		}
	}
	return nil
}

// filter is a socket to netfilter.
type filter struct {
	socket   *nl.NetlinkSocket
	sequence uint32 // of the last message
}

func dialFilter() (*filter, error) {
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("failed to open netfilter: %w", err)
	}
	if err := socket.SetReceiveTimeout(&unix.Timeval{Sec: 10}); err != nil {
		socket.Close()
		return nil, fmt.Errorf("failed to bound netfilter: %w", err)
	}
	return &filter{socket: socket}, nil
}

func (f *filter) close() { f.socket.Close() }

// do has the kernel do all messages or none.
func (f *filter) do(messages []nfMessage) error {
	first := f.sequence + 1
	f.sequence += uint32(len(messages)) + 2 // with the batch's beginning and end
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := unix.Sendto(f.socket.GetFd(), batch(first, messages), 0, to); err != nil {
		return fmt.Errorf("failed to send nftables batch: %w", err)
	}
	for {
		answers, _, err := f.socket.Receive()
		if err != nil {
			return fmt.Errorf("failed to receive nftables answer: %w", err)
		}
		for _, answer := range answers {
			done, err := acknowledged(answer, first, first+uint32(len(messages)))
			if done || err != nil {
				return err
			}
		}
	}
}

// dump has the kernel list things, and returns the attributes of each.
func (f *filter) dump(m nfMessage) (found [][]byte, err error) {
	f.sequence++
	to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	request := appendMessage(nil, unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, m.flags|unix.NLM_F_DUMP, f.sequence, inet, m.attrs)
	if err := unix.Sendto(f.socket.GetFd(), request, 0, to); err != nil {
		return nil, fmt.Errorf("failed to ask nftables: %w", err)
	}
	for {
		answers, _, err := f.socket.Receive()
		if err != nil {
			return nil, fmt.Errorf("failed to receive nftables answer: %w", err)
		}
		for _, answer := range answers {
			switch h := answer.Header; {
			case h.Seq != f.sequence:
			case h.Type == unix.NLMSG_DONE:
				return found, nil
			case h.Type == unix.NLMSG_ERROR:
				_, err := acknowledged(answer, f.sequence, f.sequence)
				return nil, err
			case len(answer.Data) >= len(inet):
				found = append(found, answer.Data[len(inet):])
			}
		}
	}
}

// acknowledged reads an answer; done is true for that to the last message. Messages before the first are those of
// an earlier batch that failed, and nobody waits for their answers any more.
func acknowledged(answer syscall.NetlinkMessage, first, last uint32) (done bool, err error) {
	h := answer.Header
	if h.Type != unix.NLMSG_ERROR || len(answer.Data) < 4 || int32(h.Seq-first) < 0 {
		return false, nil
	}
	if errno := int32(binary.NativeEndian.Uint32(answer.Data)); errno != 0 {
		return true, unix.Errno(-errno)
	}
	return h.Seq == last, nil
}

// inet is the header of messages about tables of IPv4 and IPv6.
var inet = [4]byte{unix.NFPROTO_INET}

// batch is what goes to the kernel: the messages, numbered from first on, between a beginning and an end.
func batch(first uint32, messages []nfMessage) []byte {
	const nftables = unix.NFNL_SUBSYS_NFTABLES
	all := [4]byte{unix.AF_UNSPEC, 0, 0, nftables}
	out, sequence := appendMessage(nil, unix.NFNL_MSG_BATCH_BEGIN, 0, first, all, nil), first
	for _, m := range messages {
		sequence++
		out = appendMessage(out, nftables<<8|m.kind, m.flags|unix.NLM_F_ACK, sequence, inet, m.attrs)
	}
	return appendMessage(out, unix.NFNL_MSG_BATCH_END, 0, sequence+1, all, nil)
}

// appendMessage appends a netlink message whose own header, struct nfgenmsg, is four bytes.
func appendMessage(out []byte, kind, flags uint16, sequence uint32, header [4]byte, attrs []*nl.RtAttr) []byte {
	start := len(out)
	out = append(out, make([]byte, unix.SizeofNlMsghdr)...)
	out = append(out, header[:]...)
	for _, attr := range attrs {
		out = append(out, attr.Serialize()...)
	}
	length := len(out) - start
	binary.NativeEndian.PutUint32(out[start:], uint32(length))
	binary.NativeEndian.PutUint16(out[start+4:], kind)
	binary.NativeEndian.PutUint16(out[start+6:], flags|unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(out[start+8:], sequence)
	return out
}

func text(kind int, value string) *nl.RtAttr { return nl.NewRtAttr(kind, nl.ZeroTerminated(value)) }

// big is a number as nftables wants it: in network order.
func big(kind, value int) *nl.RtAttr {
	return nl.NewRtAttr(kind, binary.BigEndian.AppendUint32(nil, uint32(int32(value))))
}

func nested(kind int, children ...*nl.RtAttr) *nl.RtAttr {
	attr := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
	for _, child := range children {
		attr.AddChild(child)
	}
	return attr
}

// expression is an instruction of a rule.
func expression(name string, data ...*nl.RtAttr) *nl.RtAttr {
	return nested(unix.NFTA_LIST_ELEM, text(unix.NFTA_EXPR_NAME, name), nested(unix.NFTA_EXPR_DATA, data...))
}

// children are the attributes within the first one of a kind; none where there is no such.
func children(attrs []byte, kind int) []syscall.NetlinkRouteAttr {
	found, err := nl.ParseRouteAttr(child(attrs, kind))
	if err != nil {
		return nil
	}
	return found
}

// child is the value of the first attribute of a kind; nil where there is none.
func child(attrs []byte, kind int) []byte {
	found, err := nl.ParseRouteAttr(attrs)
	if err != nil {
		return nil
	}
	for _, attr := range found {
		if int(attr.Attr.Type)&^unix.NLA_F_NESTED == kind {
			return attr.Value
		}
	}
	return nil
}

// ifname is an interface's name as rules hold it.
func ifname(name string) []byte {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return padded
}
