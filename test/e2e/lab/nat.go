package lab

import (
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// forwardService does in the calling thread's namespace what kube-proxy does for a LoadBalancer service with
// externalTrafficPolicy Local, and what the network plugin does for the pods' own connections:
//
//	prerouting:  ip daddr SERVICE tcp dport { ... } dnat to POD, udp likewise; the source is kept
//	postrouting: ip saddr PODS ip daddr != PODS masquerade
func forwardService() error {
	return translate(nftables.TableFamilyIPv4, ServiceIP, PodIP, Pods, UDPPorts)
}

// forwardService6 does the same for IPv6.
func forwardService6() error {
	return translate(nftables.TableFamilyIPv6, ServiceIP6, PodIP6, Pods6, UDPPorts6)
}

func translate(family nftables.TableFamily, service, pod netip.Addr, pods netip.Prefix, udpPorts []uint16) error {
	source, destination := uint32(ipSource), uint32(ipDestination)
	if service.Is6() {
		source, destination = ip6Source, ip6Destination
	}
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("failed to open nftables: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Family: family, Name: "service"})
	pre := conn.AddChain(&nftables.Chain{
		Name: "prerouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	for protocol, ports := range map[byte][]uint16{unix.IPPROTO_TCP: TCPPorts, unix.IPPROTO_UDP: udpPorts} {
		set := &nftables.Set{Table: table, Anonymous: true, Constant: true, KeyType: nftables.TypeInetService}
		var elements []nftables.SetElement
		for _, port := range ports {
			elements = append(elements, nftables.SetElement{Key: binaryutil.BigEndian.PutUint16(port)})
		}
		if err := conn.AddSet(set, elements); err != nil {
			return fmt.Errorf("failed to add ports: %w", err)
		}
		conn.AddRule(&nftables.Rule{Table: table, Chain: pre, Exprs: concat(
			matchAddr(destination, netip.PrefixFrom(service, service.BitLen()), expr.CmpOpEq),
			[]expr.Any{
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{protocol}},
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
				&expr.Lookup{SourceRegister: 1, SetName: set.Name, SetID: set.ID},
				&expr.Immediate{Register: 1, Data: pod.AsSlice()},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1},
			},
		)})
	}
	post := conn.AddChain(&nftables.Chain{
		Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: concat(
		matchAddr(source, pods, expr.CmpOpEq),
		matchAddr(destination, pods, expr.CmpOpNeq),
		[]expr.Any{&expr.Masq{}},
	)})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("failed to load rules: %w", err)
	}
	return nil
}

// Offsets of the addresses in the headers of IPv4 and IPv6.
const (
	ipSource       = 12
	ipDestination  = 16
	ip6Source      = 8
	ip6Destination = 24
)

func matchAddr(offset uint32, prefix netip.Prefix, op expr.CmpOp) []expr.Any {
	length := uint32(prefix.Addr().BitLen() / 8)
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length},
		&expr.Bitwise{
			SourceRegister: 1, DestRegister: 1, Len: length,
			Mask: ipNet(prefix).Mask, Xor: make([]byte, length),
		},
		&expr.Cmp{Op: op, Register: 1, Data: prefix.Masked().Addr().AsSlice()},
	}
}

func concat(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, part := range parts {
		all = append(all, part...)
	}
	return all
}
