package hostlink

import (
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A listener is for packet sockets, which see a frame before the IP layer does. Without further ado the IP layer
// would get it as well: a router advertisement on the provisioning network gives the pod an address and a default
// route, and a machine there reaches every port of the pod past the service and all policies. So nftables drops at
// the first hook of the IP layer whatever comes from the listener. One table per listener; a table of the same name
// is replaced. Where a server hears by a plain socket, DHCP requests alone pass.

// tablePrefix begins the name of every table of ours, which has one chain.
const tablePrefix, chain = "broadcast-init-", "prerouting"

// isolate keeps the IP layer from whatever arrives at a listener, but for DHCP requests where they are to pass.
func (h *Host) isolate(listener string, requestsPass bool) *Fault {
	err := h.filterErr
	if err == nil {
		err = h.filter.isolate(listener, requestsPass)
	}
	if err == nil {
		return nil
	}
	return newFault(NotIsolated, err,
		fmt.Sprintf("the kernel took no nftables rule that keeps what %s receives from the pod's IP layer", listener),
		"load the module nf_tables on the node; until then a machine on that network can reach the pod's ports, "+
			"and give it an IPv6 address and route")
}

// filterTime is how long the kernel may take to answer.
const filterTime = 10 * time.Second

// filter is a socket to netfilter.
type filter struct {
	*nftables.Conn
	socket *netlink.Conn
}

func dialFilter() (f *filter, err error) {
	f = &filter{}
	f.Conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(socket *netlink.Conn) error {
		f.socket = socket
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("failed to open netfilter: %w", err)
	}
	// Without the module nf_tables the kernel answers one message of a batch, whose others would be waited for.
	if err = f.bound(); err == nil {
		_, err = f.ListTablesOfFamily(nftables.TableFamilyINet)
	}
	if err != nil {
		f.close()
		return nil, fmt.Errorf("failed to ask nftables: %w", err)
	}
	return f, nil
}

func (f *filter) close() { _ = f.CloseLasting() }

// bound bounds the next request.
func (f *filter) bound() error {
	if err := f.socket.SetDeadline(time.Now().Add(filterTime)); err != nil {
		return fmt.Errorf("failed to bound netfilter: %w", err)
	}
	return nil
}

// flush has the kernel do all that was added since the last time, or none of it.
func (f *filter) flush() error {
	if err := f.bound(); err != nil {
		return err
	}
	if err := f.Flush(); err != nil {
		return fmt.Errorf("failed to change nftables: %w", err)
	}
	return nil
}

func table(listener string) *nftables.Table {
	return &nftables.Table{Family: nftables.TableFamilyINet, Name: tablePrefix + listener}
}

// remove removes a listener's table, whether there is one or not: it is made before.
func (f *filter) remove(listener string) { f.DelTable(f.AddTable(table(listener))) }

// isolate makes a listener's table anew.
func (f *filter) isolate(listener string, requestsPass bool) error {
	f.remove(listener)
	at := f.AddChain(&nftables.Chain{
		Name: chain, Table: f.AddTable(table(listener)),
		Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting,
		Priority: nftables.ChainPriorityRef(-450), // before defragmentation, which is the first to look at packets
	})
	if requestsPass {
		accept := append(requestsFrom(listener), &expr.Verdict{Kind: expr.VerdictAccept})
		f.AddRule(&nftables.Rule{Table: at.Table, Chain: at, Exprs: accept})
	}
	drop := append(fromListener(listener), &expr.Verdict{Kind: expr.VerdictDrop})
	f.AddRule(&nftables.Rule{Table: at.Table, Chain: at, Exprs: drop})
	return f.flush()
}

// fromListener begins a rule for what comes from a listener: iifname <listener>.
func fromListener(listener string) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, listener)
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1}, equal(name)}
}

// requestsFrom begins a rule for the DHCPv4 requests that come from a listener: ... udp dport 67.
func requestsFrom(listener string) []expr.Any {
	return append(fromListener(listener),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{unix.IPPROTO_UDP}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, equal([]byte{0, 67}))
}

// equal is the instruction that compares what the one before it has loaded.
func equal(value []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value} }
