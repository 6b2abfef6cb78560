package datagram

import (
	"fmt"
	"net"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Addresses. The client has many, as a rack has.
const (
	proxyIP       = "10.99.0.1"
	proxyServerIP = "10.98.0.1"
	serverIP      = "10.98.0.2"
	clientIPs     = 250
)

func clientIP(i int) net.IP { return net.IPv4(10, 99, 1, byte(1+i%clientIPs)) }

// network is the three namespaces.
type network struct{ client, proxy, server netns.NsHandle }

func newNetwork() (n *network, err error) {
	n = &network{client: -1, proxy: -1, server: -1}
	defer func() {
		if err != nil {
			n.close()
			err = fmt.Errorf("failed to make the bench's network (it needs root): %w", err)
		}
	}()
	for _, h := range []*netns.NsHandle{&n.client, &n.proxy, &n.server} {
		if err := onThread(func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			*h, err = netns.Get()
			return err
		}); err != nil {
			return nil, err
		}
	}
	if err := n.link(n.client, "c0", n.proxy, "p0"); err != nil {
		return nil, err
	}
	if err := n.link(n.proxy, "p1", n.server, "s0"); err != nil {
		return nil, err
	}
	for i := range clientIPs {
		if err := addr(n.client, "c0", clientIP(i).String()+"/16"); err != nil {
			return nil, err
		}
	}
	for _, a := range []struct {
		ns         netns.NsHandle
		link, cidr string
	}{
		{n.proxy, "p0", proxyIP + "/16"}, {n.proxy, "p1", proxyServerIP + "/16"}, {n.server, "s0", serverIP + "/16"},
	} {
		if err := addr(a.ns, a.link, a.cidr); err != nil {
			return nil, err
		}
	}
	// For the candidate without a proxy.
	if err := do(n.proxy, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	}); err != nil {
		return nil, err
	}
	if err := route(n.client, "10.98.0.0/16", proxyIP); err != nil {
		return nil, err
	}
	return n, route(n.server, "10.99.0.0/16", proxyServerIP)
}

func (n *network) close() {
	for _, h := range []netns.NsHandle{n.client, n.proxy, n.server} {
		if h.IsOpen() {
			_ = h.Close()
		}
	}
}

// link joins two namespaces.
func (n *network) link(a netns.NsHandle, nameA string, b netns.NsHandle, nameB string) error {
	h, err := netlink.NewHandleAt(a)
	if err != nil {
		return err
	}
	defer h.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = nameA
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(b)}
	if err := h.LinkAdd(veth); err != nil {
		return fmt.Errorf("failed to make veth %s: %w", nameA, err)
	}
	for _, end := range []struct {
		ns   netns.NsHandle
		name string
	}{{a, nameA}, {b, nameB}} {
		if err := withLink(end.ns, end.name, func(h *netlink.Handle, l netlink.Link) error {
			return h.LinkSetUp(l)
		}); err != nil {
			return err
		}
	}
	return nil
}

func withLink(ns netns.NsHandle, name string, f func(*netlink.Handle, netlink.Link) error) error {
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("failed to find %s: %w", name, err)
	}
	return f(h, l)
}

func addr(ns netns.NsHandle, link, cidr string) error {
	a, err := netlink.ParseAddr(cidr)
	if err != nil {
		return err
	}
	return withLink(ns, link, func(h *netlink.Handle, l netlink.Link) error { return h.AddrAdd(l, a) })
}

func route(ns netns.NsHandle, prefix, via string) error {
	_, dst, err := net.ParseCIDR(prefix)
	if err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return err
	}
	defer h.Close()
	return h.RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP(via)})
}

// do runs f inside a namespace, on a thread that ends with it.
func do(ns netns.NsHandle, f func() error) error {
	return onThread(func() error {
		if err := netns.Set(ns); err != nil {
			return fmt.Errorf("failed to enter namespace: %w", err)
		}
		return f()
	})
}

func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		done <- f()
	}()
	return <-done
}

// listenUDP opens a socket inside a namespace.
func listenUDP(ns netns.NsHandle, ip net.IP, port int) (conn *net.UDPConn, err error) {
	err = do(ns, func() error {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: ip, Port: port})
		return err
	})
	return conn, err
}
