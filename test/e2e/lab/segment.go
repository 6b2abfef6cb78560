package lab

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/program"
)

// SegmentIP is the address in [LAN] of the host that has all machines of [Options.Segment].
var SegmentIP = netip.MustParseAddr("192.0.2.9")

// HardwareAddr is where [Options.Hardware] has to listen.
var HardwareAddr = netip.AddrPortFrom(TinkIP, 6443)

// machinesNet is the network that machines' addresses are in.
func (o *Options) machinesNet() netip.Prefix {
	if o.Segment.IsValid() {
		return o.Segment
	}
	return LAN
}

// broadcastOf is the last address of an IPv4 network.
func broadcastOf(p netip.Prefix) netip.Addr {
	addr := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		addr[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(addr)
}

// AddSegment gives all machines of [Options.Segment] one namespace with one interface on the LAN, for machines by the
// hundred: every address of the segment is the namespace's own, and the node reaches all of them through it, so that no
// machine needs an entry in a table of neighbours. It returns the role for [Lab.Do] and [Process].
func (l *Lab) AddSegment(name string) (role string, err error) {
	role, err = l.AddHost(name, net.HardwareAddr{0x52, 0x54, 0x00, 0x5f, 0xff, 0xff})
	if err != nil {
		return "", err
	}
	if err := l.Configure(role, netip.PrefixFrom(SegmentIP, LAN.Bits()), GatewayIP); err != nil {
		return "", err
	}
	segment := ipNet(l.opts.Segment.Masked())
	err = l.Do(role, func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: segment, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
			Scope: netlink.SCOPE_HOST,
		})
	})
	if err == nil {
		err = l.Do(RoleNode, func() error {
			return netlink.RouteReplace(&netlink.Route{Dst: segment, Gw: SegmentIP.AsSlice()})
		})
	}
	if err != nil {
		return "", fmt.Errorf("failed to route %s to %s: %w", segment, role, err)
	}
	return role, nil
}

// Lose drops so many of 10,000 packets that pass the LAN's switch, in either direction, whatever they are: broadcasts
// too. A packet of TCP counts as one as the kernel hands it over, which may be several segments.
func (l *Lab) Lose(of10000 uint32) error {
	err := l.Do(RoleLAN, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyBridge, Name: "loss"})
		chain := conn.AddChain(&nftables.Chain{
			Name: "forward", Table: table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
		})
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Numgen{Register: 1, Modulus: 10000, Type: unix.NFT_NG_RANDOM},
			// Numbers are compared byte by byte, from the first: they have to be big-endian.
			&expr.Byteorder{SourceRegister: 1, DestRegister: 1, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Cmp{Op: expr.CmpOpLt, Register: 1, Data: binaryutil.BigEndian.PutUint32(of10000)},
			&expr.Counter{},
			&expr.Verdict{Kind: expr.VerdictDrop},
		}})
		return conn.Flush()
	})
	if err != nil {
		return fmt.Errorf("failed to lose packets: %w", err)
	}
	return nil
}

// Lost is how many packets were lost since Lose.
func (l *Lab) Lost() (uint64, error) {
	var lost uint64
	err := l.Do(RoleLAN, func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := &nftables.Table{Family: nftables.TableFamilyBridge, Name: "loss"}
		rules, err := conn.GetRules(table, &nftables.Chain{Name: "forward", Table: table})
		if err != nil {
			return err
		}
		for _, rule := range rules {
			for _, e := range rule.Exprs {
				if counter, ok := e.(*expr.Counter); ok {
					lost += counter.Packets
				}
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("failed to count lost packets: %w", err)
	}
	return lost, nil
}

// hardware runs the server that plays the Kubernetes API.
func (l *Lab) hardware() (Process, func(context.Context) error, error) {
	path := filepath.Join(l.opts.RunDir, "hardware.json")
	if err := program.WriteJSON(path, tinkerbellHardware(&l.opts)); err != nil {
		return Process{}, nil, err
	}
	process := Process{
		Role: RoleTink, Path: l.opts.Hardware.Path, Env: slices.Clone(l.opts.Hardware.Env),
		Args: append(slices.Clone(l.opts.Hardware.Args), "-file", path),
	}
	return process, l.tcpReady(RoleTink, HardwareAddr.String()), nil
}
