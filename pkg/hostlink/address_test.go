package hostlink

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/internal/nstest"
)

// listenUDP opens a plain socket that may send broadcasts; a device's name binds it to that.
func listenUDP(t *testing.T, ns *nstest.NS, address, device string) *net.UDPConn {
	t.Helper()
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		controlErr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
			if device != "" {
				err = errors.Join(err, unix.BindToDevice(int(fd), device))
			}
		})
		return errors.Join(controlErr, err)
	}}
	var conn net.PacketConn
	ns.Do(t, func() (err error) {
		conn, err = config.ListenPacket(t.Context(), "udp4", address)
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.UDPConn)
}

// hears sends a datagram and reports whether it comes, and by which of the receiver's interfaces.
func hears(t *testing.T, from, at *net.UDPConn, to *net.UDPAddr) (int, bool) {
	t.Helper()
	conn := ipv4.NewPacketConn(at)
	if err := conn.SetControlMessage(ipv4.FlagInterface, true); err != nil { // the kernel notes it as a datagram comes
		t.Fatal(err)
	}
	if _, err := from.WriteTo([]byte("x"), to); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	_, about, _, err := conn.ReadFrom(make([]byte, 16))
	if err != nil {
		return 0, false
	}
	return about.IfIndex, true
}

// TestServerHearsByPlainSocket has a server in the pod hear a machine's broadcast without a relay, as Smee does, and
// answer it by the listener. It hears nothing else there, and nothing at all without the address.
func TestServerHearsByPlainSocket(t *testing.T) {
	for _, kind := range []Kind{Macvlan, IPvlan} {
		t.Run(kind.String(), func(t *testing.T) {
			n := newNode(t)
			h := n.open(t)
			spec := Spec{Name: "listener0", Parent: "prov0", Kind: kind, Address: netip.MustParsePrefix("127.1.1.1/32")}
			ensure := func(want ...string) {
				t.Helper()
				if _, err := h.Ensure(spec); err != nil {
					t.Fatal(err)
				}
				addresses, err := n.pod.Links().AddrList(n.pod.Link(t, "listener0"), netlink.FAMILY_V4)
				var got []string
				for _, address := range addresses {
					got = append(got, address.IPNet.String())
				}
				if diff := cmp.Diff(want, got); err != nil || diff != "" {
					t.Errorf("the addresses (-want +got): %s (%v)", diff, err)
				}
			}
			if _, err := h.Ensure(spec); kind == IPvlan && err != nil {
				t.Skipf("needs a kernel with ipvlan: %v", err)
			}
			ensure("127.1.1.1/32") // as a container that starts again
			nstest.Veth(t, n.pod, "eth0", n.host, "cni0")
			n.pod.Addr(t, "eth0", "10.244.0.10/24")
			// Neither has a route to the other.
			for ns, link := range map[*nstest.NS]string{n.pod: "listener0", n.lan: "lan0"} {
				ns.Do(t, func() error {
					return errors.Join(os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("0"), 0o600),
						os.WriteFile("/proc/sys/net/ipv4/conf/"+link+"/rp_filter", []byte("0"), 0o600))
				})
			}
			server, other := listenUDP(t, n.pod, "0.0.0.0:67", ""), listenUDP(t, n.pod, "0.0.0.0:69", "")
			machine := listenUDP(t, n.lan, "0.0.0.0:68", "lan0")
			everybody := func(port int) *net.UDPAddr { return &net.UDPAddr{IP: net.IPv4bcast, Port: port} }
			by, ok := hears(t, machine, server, everybody(67))
			if !ok || by != n.pod.Link(t, "listener0").Attrs().Index {
				t.Fatalf("got the request heard: %v, by interface %d", ok, by)
			}
			if _, ok := hears(t, machine, other, everybody(69)); ok {
				t.Error("got another port reached through the listener")
			}
			// Smee answers by the interface that it heard.
			_, err := ipv4.NewPacketConn(server).WriteTo([]byte("x"), &ipv4.ControlMessage{IfIndex: by}, everybody(68))
			if err != nil {
				t.Fatal(err)
			}
			if err := machine.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
				t.Fatal(err)
			}
			_, from, err := machine.ReadFromUDP(make([]byte, 16))
			if err != nil || from.Port != 67 || from.IP.IsLoopback() {
				t.Errorf("got the answer from %v: %v", from, err)
			}
			spec.Address = netip.Prefix{}
			ensure()
			if _, ok := hears(t, machine, server, everybody(67)); ok {
				t.Error("got a request heard without the address")
			}
		})
	}
}
