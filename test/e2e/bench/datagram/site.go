package datagram

import (
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netns"

	"github.com/tinkerbell/stack/test/e2e/network"
)

// Addresses. The client has many, as a rack has.
const (
	proxyIP       = "10.99.0.1"
	proxyServerIP = "10.98.0.1"
	serverIP      = "10.98.0.2"
	clientIPs     = 250
)

func clientIP(i int) net.IP { return net.IPv4(10, 99, 1, byte(1+i%clientIPs)) }

// site is the three namespaces.
type site struct{ client, proxy, server netns.NsHandle }

func newSite() (n *site, err error) {
	n = &site{client: -1, proxy: -1, server: -1}
	defer func() {
		if err != nil {
			n.close()
			err = fmt.Errorf("failed to make the bench's network (it needs root): %w", err)
		}
	}()
	for _, h := range []*netns.NsHandle{&n.client, &n.proxy, &n.server} {
		if *h, err = network.New(); err != nil {
			return nil, err
		}
	}
	if err := network.Join(n.client, "c0", n.proxy, "p0"); err != nil {
		return nil, err
	}
	if err := network.Join(n.proxy, "p1", n.server, "s0"); err != nil {
		return nil, err
	}
	clients := make([]string, clientIPs)
	for i := range clients {
		clients[i] = clientIP(i).String() + "/16"
	}
	for _, each := range []struct {
		ns        netns.NsHandle
		link      string
		addresses []string
	}{
		{n.client, "c0", clients}, {n.proxy, "p0", []string{proxyIP + "/16"}},
		{n.proxy, "p1", []string{proxyServerIP + "/16"}}, {n.server, "s0", []string{serverIP + "/16"}},
	} {
		if err := network.Raise(each.ns, each.link, each.addresses...); err != nil {
			return nil, err
		}
	}
	// For the candidate without a proxy.
	if err := network.Do(n.proxy, func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	}); err != nil {
		return nil, err
	}
	if err := network.Route(n.client, "10.98.0.0/16", proxyIP); err != nil {
		return nil, err
	}
	return n, network.Route(n.server, "10.99.0.0/16", proxyServerIP)
}

func (n *site) close() {
	for _, h := range []netns.NsHandle{n.client, n.proxy, n.server} {
		if h.IsOpen() {
			_ = h.Close()
		}
	}
}

// listenUDP opens a socket inside a namespace.
func listenUDP(ns netns.NsHandle, ip net.IP, port int) (conn *net.UDPConn, err error) {
	err = network.Do(ns, func() error {
		conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: ip, Port: port})
		return err
	})
	return conn, err
}
