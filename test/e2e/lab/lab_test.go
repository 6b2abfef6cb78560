package lab_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/tinkerbell/stack/test/e2e/lab"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

func TestMain(m *testing.M) {
	lab.Init()
	if os.Getenv(ownerEnv) != "" {
		os.Exit(beOwner())
	}
	os.Exit(m.Run())
}

func machine(tb testing.TB) lab.Machine {
	tb.Helper()
	mac, err := net.ParseMAC("52:54:00:00:00:01")
	if err != nil {
		tb.Fatal(err)
	}
	return lab.Machine{Name: "m1", MAC: mac, IP: netip.MustParseAddr("192.0.2.101"), Userdata: "#cloud <&>\n\"x\": é"}
}

// ours are the programs of this project; tests of the lab alone leave them out.
var ours = []string{lab.BroadcastInit, lab.StackBoots, lab.DHCPRelay, lab.StackProxy}

func TestServices(t *testing.T) {
	m := machine(t)
	l := lab.ForTest(t, lab.Options{Machines: []lab.Machine{m}, Without: ours})
	host, err := l.AddHost("m1", m.MAC)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Configure(host, netip.PrefixFrom(m.IP, lab.LAN.Bits()), lab.GatewayIP); err != nil {
		t.Fatal(err)
	}
	t.Run("DNS", func(t *testing.T) { testDNS(t, l) })
	t.Run("service IP keeps the source", func(t *testing.T) { testServiceIP(t, l, host, m.IP) })
	t.Run("router advertisements", func(t *testing.T) { testRA(t, l, host) })
	t.Run("Hegel", func(t *testing.T) { testHegel(t, l, m) })
	t.Run("Smee", func(t *testing.T) { testSmee(t, l, m) })
	t.Run("confinement", func(t *testing.T) { testConfinement(t, l) })
	t.Run("node in a box", func(t *testing.T) { testNodeInBox(t, l) })
	t.Run("unexpected end", func(t *testing.T) { testUnexpectedEnd(t, l) })
	t.Run("link", func(t *testing.T) { testLink(t, l, host) })
}

func testDNS(t *testing.T, l *lab.Lab) {
	const smee = "smee." + lab.Domain
	answers := func(name string, kind uint16) string {
		reply, err := l.Resolve(name, kind)
		if err != nil {
			return err.Error()
		}
		all := []string{dns.RcodeToString[reply.Rcode]}
		for _, answer := range reply.Answer {
			_, text, _ := strings.Cut(answer.String(), "\t") // without its name
			all = append(all, strings.ReplaceAll(text, "\t", " "))
		}
		return strings.Join(all, "; ")
	}
	check := func(name string, kind uint16, want string) {
		t.Helper()
		if got := answers(name, kind); got != want {
			t.Errorf("%s of %s: got %q, want %q", dns.TypeToString[kind], name, got, want)
		}
	}
	check(smee, dns.TypeA, "NOERROR; 2 IN A "+lab.SmeeIP.String())
	check(smee, dns.TypeAAAA, "NOERROR")
	check("_tftp._udp."+smee, dns.TypeSRV, "NOERROR; 2 IN SRV 0 100 69 "+smee+".")
	check("nobody."+lab.Domain, dns.TypeA, "NXDOMAIN")
	if err := l.SetRecord("smee", netip.MustParseAddr("2001:db8::7"), lab.HegelIP); err != nil {
		t.Fatal(err)
	}
	check(smee, dns.TypeA, "NOERROR; 2 IN A "+lab.HegelIP.String())
	check(smee, dns.TypeAAAA, "NOERROR; 2 IN AAAA 2001:db8::7")
	if err := l.SetRecord("smee"); err != nil {
		t.Fatal(err)
	}
	check(smee, dns.TypeA, "NXDOMAIN")
	if err := l.SetRecord("smee", lab.SmeeIP); err != nil {
		t.Fatal(err)
	}
}

// testServiceIP talks to every port of the service IP from a machine and looks at both ends' addresses.
func testServiceIP(t *testing.T, l *lab.Lab, host string, source netip.Addr) {
	for _, port := range lab.TCPPorts {
		var listener net.Listener
		err := l.Do(lab.RolePod, func() (err error) {
			listener, err = net.Listen("tcp4", fmt.Sprintf("%s:%d", lab.PodIP, port))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		conn, err := l.Dial(host)(ctx, "tcp4", fmt.Sprintf("%s:%d", lab.ServiceIP, port))
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := accepted.RemoteAddr().String(), conn.LocalAddr().String(); got != want ||
			!strings.HasPrefix(got, source.String()+":") {
			t.Errorf("tcp %d: the pod sees %s, the machine is %s (%s)", port, got, want, source)
		}
		conn.Close()
		accepted.Close()
		listener.Close()
	}
	for _, port := range lab.UDPPorts {
		var inPod, onHost net.PacketConn
		err := l.Do(lab.RolePod, func() (err error) {
			inPod, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		err = l.Do(host, func() (err error) {
			onHost, err = net.ListenPacket("udp4", ":0")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		service := &net.UDPAddr{IP: lab.ServiceIP.AsSlice(), Port: int(port)}
		if _, err := onHost.WriteTo([]byte("ping"), service); err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 16)
		_ = inPod.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, from, err := inPod.ReadFrom(buffer)
		if err != nil {
			t.Fatalf("udp %d: %v", port, err)
		}
		if got := from.(*net.UDPAddr).AddrPort().Addr().Unmap(); got != source {
			t.Errorf("udp %d: the pod sees %s, the machine is %s", port, got, source)
		}
		if _, err := inPod.WriteTo([]byte("pong"), from); err != nil {
			t.Fatal(err)
		}
		_ = onHost.SetReadDeadline(time.Now().Add(5 * time.Second))
		_, from, err = onHost.ReadFrom(buffer)
		if err != nil {
			t.Fatalf("udp %d: %v", port, err)
		}
		if from.String() != service.String() {
			t.Errorf("udp %d: the answer comes from %s, want %s", port, from, service)
		}
		inPod.Close()
		onHost.Close()
	}
}

func testRA(t *testing.T, l *lab.Lab, host string) {
	var conn *icmp.PacketConn
	err := l.Do(host, func() (err error) {
		conn, err = icmp.ListenPacket("ip6:ipv6-icmp", "::")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	buffer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			t.Fatalf("no router advertisement: %v", err)
		}
		message, err := icmp.ParseMessage(58, buffer[:n])
		if err != nil || message.Type != ipv6.ICMPTypeRouterAdvertisement {
			continue
		}
		if !from.(*net.IPAddr).IP.IsLinkLocalUnicast() {
			t.Errorf("router advertisement from %s, want a link-local address", from)
		}
		break
	}
	// The kernel is stricter than the test: it makes an address only from a valid advertisement.
	progress.Await(t, "an address of "+lab.LAN6.String(), func() error {
		var addrs []net.Addr
		err := l.Do(host, func() error {
			eth0, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			addrs, err = eth0.Addrs()
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, addr := range addrs {
			if prefix, err := netip.ParsePrefix(addr.String()); err == nil && lab.LAN6.Contains(prefix.Addr()) {
				return nil
			}
		}
		return fmt.Errorf("the machine has %v", addrs)
	})
}

func get(t *testing.T, l *lab.Lab, role, url, forwardedFor string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if forwardedFor != "" {
		request.Header.Set("X-Forwarded-For", forwardedFor)
	}
	response, err := l.Client(role).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// testHegel checks that Hegel takes the client address from the pod, and from no other peer.
func testHegel(t *testing.T, l *lab.Lab, m lab.Machine) {
	base := "http://" + netip.AddrPortFrom(lab.HegelIP, 50061).String() + "/2009-04-04/"
	for path, want := range map[string]string{
		"meta-data/hostname":    m.Name,
		"meta-data/instance-id": m.MAC.String(),
		"meta-data/public-ipv4": m.IP.String(),
		"meta-data/tags":        "bios",
		"user-data":             m.Userdata,
	} {
		if status, body := get(t, l, lab.RolePod, base+path, m.IP.String()); status != http.StatusOK || body != want {
			t.Errorf("%s: got %d %q, want 200 %q", path, status, body, want)
		}
	}
	if status, body := get(t, l, lab.RoleSmee, base+"user-data", m.IP.String()); status != http.StatusNotFound {
		t.Errorf("user-data for a forged X-Forwarded-For: got %d %q, want 404", status, body)
	}
}

func testSmee(t *testing.T, l *lab.Lab, m lab.Machine) {
	url := "http://" + netip.AddrPortFrom(lab.SmeeIP, 7171).String() + "/auto.ipxe"
	status, body := get(t, l, lab.RolePod, url, m.IP.String())
	if status != http.StatusOK || !strings.Contains(body, "http://192.0.2.2:8080") ||
		!strings.Contains(body, "192.0.2.2:42113") {
		t.Errorf("auto.ipxe: got %d %q, want a script with the service IP", status, body)
	}
	conn, err := l.Dial(lab.RolePod)(t.Context(), "udp4", netip.AddrPortFrom(lab.SmeeIP, 514).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "<13>Nov 20 22:00:00 m1 lab: hello from m1"); err != nil {
		t.Fatal(err)
	}
	err = lab.Line(t.Context(), l.LogPath(lab.Smee), func(line string) bool {
		return strings.Contains(line, "hello from m1")
	})
	if err != nil {
		t.Errorf("the syslog line is not in Smee's log: %v", err)
	}
}

type probed struct {
	Status              map[string]string
	Root, Links         []string
	Resolv, Own         string
	Write, LowPort, Raw string
}

func probe(t *testing.T, l *lab.Lab, security *lab.Security) probed {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "probe")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := l.Run(ctx, lab.Process{
		Name: "probe", Role: lab.RolePod, Path: binary, Env: []string{}, Stdout: &out, Security: security,
	})
	if err != nil {
		t.Fatal(err)
	}
	var p probed
	if err := json.Unmarshal(out.Bytes(), &p); err != nil {
		t.Fatalf("%v: %s", err, &out)
	}
	return p
}

// testConfinement compares what a program of the pod sees and may do with what the chart promises.
func testConfinement(t *testing.T, l *lab.Lab) {
	const none, netAdmin, netRaw = "0000000000000000", "0000000000001000", "0000000000002000"
	ambient := &lab.Security{UID: 65532, Capabilities: []int{unix.CAP_NET_ADMIN}, Ambient: true}
	for _, test := range []struct {
		name                 string
		security             *lab.Security
		uid                  string
		inh, prm, bnd, amb   string
		mayListen, mayUseRaw bool
	}{
		{lab.BroadcastInit, nil, "0", none, netAdmin, netAdmin, none, true, false},
		{lab.DHCPRelay, nil, "0", none, netRaw, netRaw, none, true, true},
		{lab.StackProxy, nil, "65532", none, none, none, none, true, false},
		{"ambient", ambient, "65532", netAdmin, netAdmin, netAdmin, netAdmin, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			security := test.security
			if security == nil {
				var err error
				if security, err = l.SecurityOf(test.name); err != nil {
					t.Fatal(err)
				}
			}
			got := probe(t, l, security)
			ids := strings.Join([]string{test.uid, test.uid, test.uid, test.uid}, "\t")
			want := map[string]string{
				"Uid": ids, "Gid": ids, "Groups": "", "NoNewPrivs": "1",
				"CapInh": test.inh, "CapPrm": test.prm, "CapEff": test.prm, "CapBnd": test.bnd, "CapAmb": test.amb,
			}
			for key := range got.Status {
				if _, ok := want[key]; !ok {
					delete(got.Status, key)
				}
			}
			if diff := cmp.Diff(want, got.Status); diff != "" {
				t.Errorf("/proc/self/status (-want +got):\n%s", diff)
			}
			if (got.LowPort == "") != test.mayListen {
				t.Errorf("listening on port 69: %q", got.LowPort)
			}
			if (got.Raw == "") != test.mayUseRaw {
				t.Errorf("opening a raw socket: %q", got.Raw)
			}
			root := []string{"dev", "etc", "probe", "proc", "sys"}
			for inside := range security.Mounts {
				root = append([]string{strings.TrimPrefix(inside, "/")}, root...)
			}
			if diff := cmp.Diff(root, got.Root); diff != "" {
				t.Errorf("root directory (-want +got):\n%s", diff)
			}
			if !strings.Contains(got.Write, "read-only file system") {
				t.Errorf("writing to the root directory: %q, want a read-only file system", got.Write)
			}
			if want := "search tink-system.svc.cluster.local "; !strings.HasPrefix(got.Resolv, want) {
				t.Errorf("resolv.conf: got %q, want %q first", got.Resolv, want)
			}
			if diff := cmp.Diff([]string{"eth0", "lo"}, got.Links); diff != "" {
				t.Errorf("links (-want +got):\n%s", diff)
			}
			if want := inode(t, l.NamespacePath(lab.RolePod)); got.Own != fmt.Sprintf("net:[%d]", want) {
				t.Errorf("the program is in %s, the pod in %d", got.Own, want)
			}
		})
	}
}

// testNodeInBox checks what hostPID and the mounts of a process look like from inside.
func testNodeInBox(t *testing.T, l *lab.Lab) {
	var out bytes.Buffer
	err := l.Run(t.Context(), lab.Process{
		Name: "look", Role: lab.RolePod, Path: "/bin/sh", Stdout: &out,
		Args: []string{"-c", "readlink /proc/1/ns/net; cat /etc/resolv.conf; echo x 2>&1 >>/etc/resolv.conf; echo $?"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("net:[%d]\nsearch tink-system.svc.cluster.local svc.cluster.local cluster.local\n"+
		"nameserver 10.96.0.10\noptions ndots:5\n", inode(t, l.NamespacePath(lab.RoleNode)))
	if !strings.HasPrefix(out.String(), want) || !strings.Contains(out.String(), "Read-only file system") {
		t.Errorf("got %q, want %q and no way to write resolv.conf", &out, want)
	}
}

func testUnexpectedEnd(t *testing.T, l *lab.Lab) {
	if err := l.Proc(lab.Hegel).Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-l.Failed():
		if !strings.Contains(err.Error(), "hegel ended unexpectedly (signal: killed)") {
			t.Errorf("got %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the end of Hegel was not reported")
	}
	if err := l.Restart(t.Context(), lab.Hegel); err != nil {
		t.Fatal(err)
	}
	if err := l.Kill(lab.Hegel); err != nil {
		t.Fatal(err)
	}
	if err := l.Restart(t.Context(), lab.Hegel); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-l.Failed():
		t.Errorf("a wanted end was reported: %v", err)
	default:
	}
}

// testLink takes the node's uplink down and up: the machine loses the service IP and finds it again.
func testLink(t *testing.T, l *lab.Lab, host string) {
	var listener net.Listener
	err := l.Do(lab.RolePod, func() (err error) {
		listener, err = net.Listen("tcp4", ":8080")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dial := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		conn, err := l.Dial(host)(ctx, "tcp4", netip.AddrPortFrom(lab.ServiceIP, 8080).String())
		if err == nil {
			conn.Close()
		}
		return err
	}
	if err := dial(5 * time.Second); err != nil {
		t.Fatal(err)
	}
	if err := l.SetLink(lab.RoleNode, "prov0", false); err != nil {
		t.Fatal(err)
	}
	if err := dial(300 * time.Millisecond); err == nil {
		t.Error("the service IP answers with the link down")
	}
	if err := l.SetLink(lab.RoleNode, "prov0", true); err != nil {
		t.Fatal(err)
	}
	if err := dial(10 * time.Second); err != nil {
		t.Errorf("the service IP does not answer with the link up again: %v", err)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}
