package failover

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Addresses of the site. The address is VIP; nodes follow on each other.
const (
	VIP   = "192.0.2.10"
	VIP6  = "2001:db8::10"
	apiIP = "192.0.2.2"
	node0 = 20 // 192.0.2.20 is the first node
	link  = "eth0"
)

// host is a network namespace with one link on the switch, and what runs there.
type host struct {
	name  string
	ns    netns.NsHandle
	links *netlink.Handle
	port  string // of the switch
	sw    *host
}

// onThread runs f on a thread of its own, which ends with it.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// in runs f inside the host's namespace; sockets and processes that it opens stay there.
func (h *host) in(f func() error) error {
	return onThread(func() error {
		if err := netns.Set(h.ns); err != nil {
			return fmt.Errorf("failed to enter namespace: %w", err)
		}
		return f()
	})
}

func newHost(name string) (*host, error) {
	h := &host{name: name, port: name}
	err := onThread(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("failed to make network namespace: %w", err)
		}
		h.ns, err = netns.Get()
		return err
	})
	if err != nil {
		return nil, err
	}
	if h.links, err = netlink.NewHandleAt(h.ns); err != nil {
		return nil, errors.Join(err, h.ns.Close())
	}
	lo, err := h.links.LinkByName("lo")
	if err == nil {
		err = h.links.LinkSetUp(lo)
	}
	return h, err
}

func (h *host) close() error {
	if h == nil {
		return nil
	}
	h.links.Close()
	return h.ns.Close()
}

// newSwitch makes a host whose one job is a bridge.
func newSwitch() (*host, error) {
	sw, err := newHost("switch")
	if err != nil {
		return nil, err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0"}}
	if err := sw.links.LinkAdd(bridge); err != nil {
		return sw, fmt.Errorf("failed to make bridge: %w", err)
	}
	return sw, sw.links.LinkSetUp(bridge)
}

// plug connects a host to the switch, with an address of either family.
func (h *host) plug(sw *host, number int) error {
	h.sw = sw
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: link}, PeerName: h.port, PeerNamespace: netlink.NsFd(sw.ns)}
	if err := h.links.LinkAdd(veth); err != nil {
		return fmt.Errorf("failed to make veth: %w", err)
	}
	port, err := sw.links.LinkByName(h.port)
	if err != nil {
		return err
	}
	bridge, err := sw.links.LinkByName("br0")
	if err != nil {
		return err
	}
	if err := errors.Join(sw.links.LinkSetMaster(port, bridge), sw.links.LinkSetUp(port)); err != nil {
		return fmt.Errorf("failed to plug %s in: %w", h.name, err)
	}
	own, err := h.links.LinkByName(link)
	if err != nil {
		return err
	}
	if err := h.links.LinkSetUp(own); err != nil {
		return err
	}
	return h.address(own, fmt.Sprintf("192.0.2.%d/24", number), fmt.Sprintf("2001:db8::%d/64", number))
}

// address gives addresses to a link of the host.
func (h *host) address(on netlink.Link, cidrs ...string) error {
	for _, cidr := range cidrs {
		address, err := netlink.ParseAddr(cidr)
		if err != nil {
			return err
		}
		if address.IP.To4() == nil {
			address.Flags = unix.IFA_F_NODAD
		}
		if err := h.links.AddrReplace(on, address); err != nil {
			return fmt.Errorf("failed to give %s its address: %w", h.name, err)
		}
	}
	return nil
}

// podIP are addresses of the network of a node's pod. The API wants them as it would write them: no zero before "::".
func podIP(number, last int) [2]string {
	return [2]string{fmt.Sprintf("10.244.%d.%d", number+1, last), fmt.Sprintf("fd00:244:0:%d::%d", number+1, last)}
}

// attach connects a pod to its node: the pod has the addresses that end in 1, and the node is its router.
func (h *host) attach(pod *host, number int) error {
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pod"}, PeerName: link, PeerNamespace: netlink.NsFd(pod.ns)}
	if err := h.links.LinkAdd(veth); err != nil {
		return fmt.Errorf("failed to make veth: %w", err)
	}
	for _, end := range []struct {
		host *host
		name string
		last int
	}{{h, "pod", 254}, {pod, link, 1}} {
		own, err := end.host.links.LinkByName(end.name)
		if err != nil {
			return err
		}
		ip := podIP(number, end.last)
		err = errors.Join(end.host.links.LinkSetUp(own), end.host.address(own, ip[0]+"/24", ip[1]+"/64"))
		if err != nil {
			return err
		}
	}
	own, err := pod.links.LinkByName(link)
	if err != nil {
		return err
	}
	for _, router := range podIP(number, 254) {
		route := &netlink.Route{LinkIndex: own.Attrs().Index, Gw: net.ParseIP(router)}
		if err := pod.links.RouteAdd(route); err != nil {
			return fmt.Errorf("failed to give %s its router: %w", pod.name, err)
		}
	}
	return errors.Join(h.sysctl("net/ipv4/ip_forward", "1"), h.sysctl("net/ipv6/conf/all/forwarding", "1"))
}

// vip gives the address to a link of the host, or takes it away.
func (h *host) vip(on netlink.Link, has bool) error {
	address, err := netlink.ParseAddr(VIP + "/32")
	if err != nil {
		return err
	}
	if has {
		return h.links.AddrReplace(on, address)
	}
	return h.links.AddrDel(on, address)
}

// sysctl sets a variable of the host's network.
func (h *host) sysctl(name, value string) error {
	return h.in(func() error { return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0) })
}

// cable puts the host's cable in, or pulls it out: the link then has no carrier.
func (h *host) cable(in bool) error {
	port, err := h.sw.links.LinkByName(h.port)
	if err != nil {
		return err
	}
	if in {
		return h.sw.links.LinkSetUp(port)
	}
	return h.sw.links.LinkSetDown(port)
}

// process is a program that runs on a host.
type process struct {
	cmd   *exec.Cmd
	log   *os.File
	ended chan struct{}
}

// start starts a program on the host. Its output goes to a file of the directory.
func (h *host) start(dir, name string, env []string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(args[0], args[1:]...), log: log, ended: make(chan struct{})}
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = append(os.Environ(), env...), log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := h.in(p.cmd.Start); err != nil {
		return nil, errors.Join(fmt.Errorf("failed to start %s: %w", name, err), log.Close())
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // however it ends
		_ = log.Close()
	}()
	return p, nil
}

func (p *process) signal(s syscall.Signal) error { return syscall.Kill(-p.cmd.Process.Pid, s) }

// kill ends the process at once, even one that stands still.
func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.signal(syscall.SIGKILL) // it may have ended
	<-p.ended
}

// leave has the process end in order.
func (p *process) leave() error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(15 * time.Second):
		p.kill()
		return errors.New("it did not end after SIGTERM")
	}
}
