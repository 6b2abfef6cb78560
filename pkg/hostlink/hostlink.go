// Package hostlink gives a pod an interface that receives the broadcasts of a network of its node: a macvlan (bridge
// mode) or ipvlan (L2 mode) whose parent stays in the node's network namespace.
//
// Everything is done by rtnetlink from inside the pod's own network namespace, with CAP_NET_ADMIN alone: the node's
// namespace gets an id (RTM_NEWNSID, by the pid of a process in it), requests about the parent carry that id
// (IFLA_TARGET_NETNSID), and the listener is made in the pod with a link to the parent beyond it
// (IFLA_LINK_NETNSID). No namespace is entered, nothing is moved, and nothing is left on the node by a failure.
//
// Non-goals: addresses (a listener needs none to receive broadcasts), making VLANs or bridges on the node, and any
// interface that this package did not make.
package hostlink

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Kind is the kind of interface that listens.
type Kind uint8

// The kinds of listener.
const (
	// Macvlan has a MAC address of its own.
	Macvlan Kind = iota
	// IPvlan shares the parent's MAC address, for networks that drop unknown ones.
	IPvlan
)

// String is the kernel's name of the kind.
func (k Kind) String() string {
	if k == IPvlan {
		return "ipvlan"
	}
	return "macvlan"
}

// other is the kind that cannot share a parent with k.
func (k Kind) other() Kind {
	if k == IPvlan {
		return Macvlan
	}
	return IPvlan
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Kind) UnmarshalText(text []byte) error {
	switch string(text) {
	case "macvlan":
		*k = Macvlan
	case "ipvlan":
		*k = IPvlan
	default:
		return fmt.Errorf("%q is neither macvlan nor ipvlan", text)
	}
	return nil
}

// Spec is a listener as it should be.
type Spec struct {
	// Name is the listener's name in the pod, at most 15 bytes.
	Name string
	// Parent selects the node's interface: by name, altname, MAC address, IP address, or a prefix in which it has
	// an address. Empty selects the interface of the default route.
	Parent string
	// Kind is the listener's kind.
	Kind Kind
	// Address is for a server that hears by a plain socket, as Smee does: the listener gets it, and the pod's IP layer
	// gets the listener's DHCP requests, and nothing else. Without one the listener is for packet sockets only.
	Address netip.Prefix
	// MAC is the listener's address. Nil leaves it to the kernel, which draws a random one; ipvlan has none.
	MAC net.HardwareAddr
}

// Host reaches the node's network namespace from the pod's. It is for one goroutine.
type Host struct {
	proc string // of the process in the node's namespace
	nsid int    // what the pod's namespace calls the node's
	conn *conn
	pod  *netlink.Handle
	lock *podLock

	filter    *filter
	filterErr error // why there is none
}

// procfs is where it is mounted.
const procfs = "/proc"

// Open opens the way from the calling thread's network namespace to the one of a process, which is 1 in a pod with
// hostPID. What is missing for it (a capability, hostPID) is a [Fault], as every error of this package is.
func Open(pid int) (*Host, error) {
	h := &Host{proc: filepath.Join(procfs, strconv.Itoa(pid))}
	err := checkCapability()
	if err == nil {
		err = checkApart(pid, h.proc)
	}
	if err == nil {
		err = h.connect(pid)
	}
	if err != nil {
		h.Close()
		return nil, explain(err)
	}
	return h, nil
}

func (h *Host) connect(pid int) (err error) {
	if h.lock, err = openLock(); err != nil {
		return err
	}
	if h.conn, err = dial(); err != nil {
		return err
	}
	if h.pod, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("failed to open rtnetlink: %w", err)
	}
	h.filter, h.filterErr = dialFilter()
	h.nsid, err = h.namespaceID(pid)
	return err
}

// Close releases the sockets. Listeners stay.
func (h *Host) Close() {
	if h.pod != nil {
		h.pod.Close()
	}
	if h.conn != nil {
		h.conn.close()
	}
	if h.filter != nil {
		h.filter.close()
	}
	if h.lock != nil {
		h.lock.close()
	}
}

// namespaceID asks what the pod's namespace calls the namespace of pid, and has the kernel choose an id the first
// time. The id lasts as long as both namespaces do.
func (h *Host) namespaceID(pid int) (int, error) {
	id, err := h.pod.GetNetNsIdByPid(pid)
	if err == nil && id < 0 {
		// -1 lets the kernel choose. EEXIST: somebody else in the pod was quicker.
		if err = h.pod.SetNetNsIdByPid(pid, -1); err == nil || errors.Is(err, unix.EEXIST) {
			id, err = h.pod.GetNetNsIdByPid(pid)
		}
	}
	switch {
	case errors.Is(err, unix.ESRCH):
		return 0, noProcess(pid, err)
	case errors.Is(err, unix.EPERM):
		return 0, noCapability(os.Geteuid(), err)
	case err != nil:
		return 0, fmt.Errorf("failed to name the network namespace of process %d: %w", pid, err)
	case id < 0:
		return 0, fmt.Errorf("failed to name the network namespace of process %d: kernel gave no id", pid)
	}
	return id, nil
}

// checkCapability tells early what the kernel would tell with an EPERM on some later request.
func checkCapability() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("failed to read own capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_NET_ADMIN) == 0 {
		return noCapability(os.Geteuid(), nil)
	}
	return nil
}

// checkApart makes sure that the process is in another network namespace than ours. The namespaces themselves may
// only be compared by a process that may trace the other, but every namespace has a procfs tree of its own, with
// inodes of its own, and that may be seen by all.
func checkApart(pid int, process string) error {
	theirs, err := inode(filepath.Join(process, "net", "dev"))
	if errors.Is(err, os.ErrNotExist) {
		return noProcess(pid, err)
	}
	if err != nil {
		return fmt.Errorf("failed to look at the network of process %d: %w", pid, err)
	}
	ours, err := inode(filepath.Join(procfs, "thread-self", "net", "dev"))
	if err != nil {
		return fmt.Errorf("failed to look at own network: %w", err)
	}
	if ours == theirs {
		return sameNamespace(pid)
	}
	return nil
}

func inode(path string) (uint64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("failed to read inode of %s: no inode", path)
	}
	return stat.Ino, nil
}

// conn is an rtnetlink socket for the requests that the library has no words for.
type conn struct{ sockets map[int]*nl.SocketHandle }

func dial() (*conn, error) {
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("failed to open rtnetlink: %w", err)
	}
	c := &conn{sockets: map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: socket}}}
	// Strict checking has address dumps honour the target namespace; both are older than IFLA_TARGET_NETNSID's use
	// for creation, so a kernel without them could not do the rest either.
	if err := unix.SetsockoptInt(socket.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		c.close()
		return nil, fmt.Errorf("failed to ask for strict rtnetlink (Linux 4.20 or newer is needed): %w", err)
	}
	if err := socket.SetExtAck(true); err != nil {
		c.close()
		return nil, fmt.Errorf("failed to ask for rtnetlink messages: %w", err)
	}
	for _, set := range []func(*unix.Timeval) error{socket.SetSendTimeout, socket.SetReceiveTimeout} {
		if err := set(&nl.SocketTimeoutTv); err != nil {
			c.close()
			return nil, fmt.Errorf("failed to bound rtnetlink: %w", err)
		}
	}
	return c, nil
}

func (c *conn) close() {
	for _, handle := range c.sockets {
		handle.Close()
	}
}

// do executes a request and returns the answers of one type (0: of any).
func (c *conn) do(request *nl.NetlinkRequest, answer uint16) ([][]byte, error) {
	request.Sockets = c.sockets
	return request.Execute(unix.NETLINK_ROUTE, answer)
}
