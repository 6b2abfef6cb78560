package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/boot/journal"
)

// TestBootIsSeen takes a machine from its first DISCOVER to its agent, through this program and stack-proxy, which tell
// stack-boots. Its API tells the steps.
func TestBootIsSeen(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds stack-proxy and stack-boots")
	}
	l := newLab(t)
	l.pod.Addr(t, "macvlan0", serviceIP.String()+"/24")
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := &bootLab{lab: l, relay: l.start(t, "BOOTS_ADDRESS="+bootsEvents, "BOOTS_KEY_FILE="+key, "SOURCE_ADDRESS="+serviceIP.String())}
	b.relay.waitReady(t)
	b.serve(t)
	b.programs(t, key)
	mac := clientMAC.String()

	firmware := []dhcpv4.Modifier{
		b.option(60, "PXEClient:Arch:00007:UNDI:003016"), b.option(93, "\x00\x07"), b.option(97, "\x00abcdefghijklmnop"),
	}
	b.dhcp(t, loaderFile, firmware...)
	l.client.Addr(t, "lan0", clientIP.String()+"/24")
	b.tftp(t, loaderFile)
	b.dhcp(t, "http://192.0.2.2:7171/auto.ipxe", append(firmware, b.option(77, "iPXE"))...)
	b.get(t, 7171, "/"+mac+"/auto.ipxe", "iPXE/1.21.1", http.StatusOK)
	b.get(t, 8080, "/vmlinuz-x86_64", "iPXE/1.21.1", http.StatusOK)
	b.get(t, 8080, "/initramfs-x86_64", "iPXE/1.21.1", http.StatusOK)
	b.dhcp(t, "", b.option(12, "hookos"))
	b.syslog(t, "<30>Nov 22 10:00:00 hookos tink-worker[7]: started")
	b.seen(t, journal.Syslog) // nobody answers it: the next request could be there first
	b.get(t, 50061, "/metadata", "Go-http-client/1.1", http.StatusNotFound)
	b.agent(t)

	m := b.seen(t, journal.Agent)
	var steps []string
	for i, s := range m.Boots[0].Steps {
		steps = append(steps, string(s.Step))
		if i > 0 && s.Begin.Before(m.Boots[0].Steps[i-1].Begin) {
			t.Errorf("step %s begins at %s, before the one before it", s.Step, s.Begin)
		}
	}
	want := []string{
		"dhcp", "loader", "ipxe-dhcp", "script", "kernel", "initramfs", "os-dhcp", "syslog", "metadata", "agent",
	}
	if diff := cmp.Diff(want, steps); diff != "" || len(m.Boots) != 1 {
		t.Errorf("%d boots; the last one's steps (-want +got):\n%s", len(m.Boots), diff)
	}
	if m.Address != clientIP || m.MAC != mac || !strings.Contains(fmt.Sprint(m.Lines), "started") {
		t.Errorf("got %+v", m)
	}
	for _, s := range m.Boots[0].Steps {
		if s.Step == journal.Loader && (s.Text != loaderFile || s.Bytes != loaderSize || s.From != serverIP.String()+":69") ||
			s.Step == journal.Kernel && s.Bytes != fileSize {
			t.Errorf("step %s: got %+v", s.Step, s)
		}
	}

	// Something else speaks to stack-boots: it is refused and counted, and all goes on.
	b.forge(t)
	b.dhcp(t, loaderFile, firmware...)
	b.relay.wantMetric(t, `dhcp_relay_boot_events_dropped_total{reason="away"} 0`)
	b.relay.wantMetric(t, `dhcp_relay_boot_events_sent_total 16`)
	testwait.Until(t, "what is forged is counted", func() bool {
		_, page := b.page("/metrics")
		return strings.Contains(page, "\nstack_boot_streams_refused_total 1\n")
	})
	testwait.Until(t, "the next boot is seen", func() bool { return len(b.machine(t, mac).Boots) == 2 })
}

// seen waits until a step of the machine's boot has ended, as the pod has it.
func (b *bootLab) seen(t *testing.T, step journal.Step) (m journal.MachineView) {
	t.Helper()
	testwait.Until(t, fmt.Sprintf("the pod has seen step %s", step), func() bool {
		m = b.machine(t, clientMAC.String())
		return len(m.Boots) > 0 && slices.ContainsFunc(m.Boots[0].Steps, func(s journal.StepView) bool {
			return s.Step == step && s.Result != journal.Going
		})
	})
	return m
}

const (
	loaderFile = "other.efi" // which stack-proxy does not fetch by itself, so that the server is asked for it
	loaderSize = 300
	fileSize   = 100 << 10
)

// bootLab is a lab with stack-proxy in the pod, and what it proxies on the server.
type bootLab struct {
	*lab
	relay *process
	log   lockedBuffer
}

// Where stack-boots is.
const bootsEvents, bootsAdmin = "127.0.0.1:9072", "127.0.0.1:9070"

// programs starts stack-boots and stack-proxy.
func (b *bootLab) programs(t *testing.T, key string) {
	t.Helper()
	directory := t.TempDir()
	if out, err := exec.Command("go", "build", "-o", directory, "../stack-proxy", "../stack-boots").CombinedOutput(); err != nil {
		t.Fatalf("failed to build stack-proxy and stack-boots: %v\n%s", err, out)
	}
	files := filepath.Join(directory, "files")
	if err := os.Mkdir(files, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"vmlinuz-x86_64", "initramfs-x86_64"} {
		if err := os.WriteFile(filepath.Join(files, name), make([]byte, fileSize), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b.run(t, filepath.Join(directory, "stack-boots"),
		"STACK_BOOTS_ADMIN_ADDRESS="+bootsAdmin, "STACK_BOOTS_LISTEN_ADDRESS="+bootsEvents, "STACK_BOOTS_KEY_FILE="+key)
	b.run(t, filepath.Join(directory, "stack-proxy"),
		"STACK_PROXY_PRESET=classic", "STACK_PROXY_ADMIN_ADDRESS=127.0.0.1:9069", "STACK_PROXY_TINKERBELL="+serverIP.String(),
		"STACK_PROXY_FILES_DIRECTORY="+files, "STACK_PROXY_DRAIN_GRACE=0s", "STACK_PROXY_DRAIN_TIMEOUT=1s",
		"STACK_PROXY_BOOTS_ADDRESS="+bootsEvents, "STACK_PROXY_BOOTS_KEY_FILE="+key)
	for _, admin := range []string{bootsAdmin, "127.0.0.1:9069"} {
		testwait.Until(t, admin+" is ready", func() bool { code, _ := b.ask(admin, "/readyz"); return code == http.StatusOK })
	}
	b.relay.wantMetric(t, `dhcp_relay_boot_events_dropped_total{reason="away"} 0`)
}

// run runs a program in the pod until the test ends.
func (b *bootLab) run(t *testing.T, program string, env ...string) {
	t.Helper()
	name := filepath.Base(program)
	p := exec.Command(program)
	p.Env, p.Stderr = env, &b.log
	b.pod.Do(t, p.Start)
	t.Cleanup(func() {
		_ = p.Process.Signal(syscall.SIGTERM)
		if err := p.Wait(); err != nil {
			t.Errorf("%s ended: %v", name, err)
		}
		if t.Failed() {
			t.Logf("the log of %s and others:\n%s", name, &b.log)
		}
	})
}

// page is one of stack-boots' admin port.
func (b *bootLab) page(path string) (int, string) { return b.ask(bootsAdmin, path) }

func (b *bootLab) ask(admin, path string) (int, string) {
	response, err := b.relay.http.Get("http://" + admin + path)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(body)
}

// machine is what the API tells of one.
func (b *bootLab) machine(t *testing.T, id string) (m journal.MachineView) {
	t.Helper()
	code, body := b.page("/api/v1/boots/" + id)
	if code == http.StatusNotFound {
		return m
	}
	var answer struct {
		Machine *journal.MachineView `json:"machine"`
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK {
		t.Fatalf("got %d %s, %v", code, body, err)
	}
	if answer.Machine != nil {
		return *answer.Machine
	}
	if err := json.Unmarshal([]byte(body), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// serve is what stands behind the proxy: Smee's TFTP, HTTP and syslog, Hegel, Tink Server.
func (b *bootLab) serve(t *testing.T) {
	t.Helper()
	tftp := b.listen(t, b.server, netip.AddrPortFrom(serverIP, 69))
	go func() {
		buffer := make([]byte, 600)
		for {
			n, from, err := tftp.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			if n > 2 && buffer[1] == 1 {
				_, _ = tftp.WriteToUDPAddrPort(append([]byte{0, 3, 0, 1}, make([]byte, loaderSize)...), from)
			}
		}
	}()
	_ = b.listen(t, b.server, netip.AddrPortFrom(serverIP, 514))
	for port, serve := range map[uint16]http.HandlerFunc{
		7171: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "#!ipxe\nkernel http://192.0.2.2:8080/vmlinuz-x86_64\n")
		},
		50061: http.NotFound,
	} {
		listener := b.tcp(t, port)
		server := &http.Server{Handler: serve}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(func() { _ = server.Close() })
	}
	tink := b.tcp(t, 42113)
	go func() {
		for {
			conn, err := tink.Accept()
			if err != nil {
				return
			}
			_, _ = io.Copy(conn, conn)
			_ = conn.Close()
		}
	}()
}

func (b *bootLab) tcp(t *testing.T, port uint16) (listener net.Listener) {
	t.Helper()
	b.server.Do(t, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(serverIP, port).String())
		return err
	})
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func (b *bootLab) option(code uint8, value string) dhcpv4.Modifier {
	return dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(code), []byte(value)))
}

// dhcp takes the machine from DISCOVER to ACK, answered by Smee with a boot file.
func (b *bootLab) dhcp(t *testing.T, file string, says ...dhcpv4.Modifier) {
	t.Helper()
	b.skip()
	xid := dhcpv4.TransactionID{1, 2, 3, byte(time.Now().UnixNano() >> 10)}
	for _, kind := range []dhcpv4.MessageType{dhcpv4.MessageTypeDiscover, dhcpv4.MessageTypeRequest} {
		asked, err := dhcpv4.NewDiscovery(clientMAC,
			append(says, dhcpv4.WithMessageType(kind), dhcpv4.WithTransactionID(xid))...)
		if err != nil {
			t.Fatal(err)
		}
		if kind == dhcpv4.MessageTypeRequest {
			asked.UpdateOption(dhcpv4.OptRequestedIPAddress(clientIP.AsSlice()))
			asked.UpdateOption(dhcpv4.OptServerIdentifier(serverIP.AsSlice()))
		}
		b.broadcast(t, asked.ToBytes())
		buffer := make([]byte, 1500)
		_ = b.smee.SetReadDeadline(time.Now().Add(patience))
		n, from, err := b.smee.ReadFromUDPAddrPort(buffer)
		if err != nil {
			t.Fatal(err)
		}
		heard, err := dhcpv4.FromBytes(buffer[:n])
		if err != nil {
			t.Fatal(err)
		}
		answer, err := dhcpv4.NewReplyFromRequest(heard, dhcpv4.WithYourIP(clientIP.AsSlice()),
			dhcpv4.WithMessageType(kind+1), dhcpv4.WithServerIP(serviceIP.AsSlice()), dhcpv4.WithGatewayIP(heard.GatewayIPAddr), dhcpv4.WithLeaseTime(3600),
			dhcpv4.WithOption(dhcpv4.OptServerIdentifier(serverIP.AsSlice())))
		if err != nil {
			t.Fatal(err)
		}
		if kind == dhcpv4.MessageTypeRequest {
			answer.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeAck))
		}
		answer.BootFileName = file
		if _, err := b.smee.WriteToUDPAddrPort(answer.ToBytes(), netip.AddrPortFrom(from.Addr(), 67)); err != nil {
			t.Fatal(err)
		}
		b.hear(t)
	}
}

// skip reads what the LAN's socket has of files: they fill its buffer, and answers would find no room.
func (b *bootLab) skip() {
	_ = b.lan.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	buffer := make([]byte, 1<<16)
	for err := error(nil); err == nil; {
		_, _, err = b.lan.ReadFrom(buffer)
	}
}

// tftp loads a file of one block.
func (b *bootLab) tftp(t *testing.T, file string) {
	t.Helper()
	conn := b.listen(t, b.client, netip.AddrPortFrom(clientIP, 0))
	to := netip.AddrPortFrom(serviceIP, 69)
	if _, err := conn.WriteToUDPAddrPort(append([]byte{0, 1}, file+"\x00octet\x00"...), to); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	buffer := make([]byte, 600)
	n, _, err := conn.ReadFromUDPAddrPort(buffer)
	if err != nil || n != 4+loaderSize {
		t.Fatalf("got %q, %v", buffer[:n], err)
	}
	if _, err := conn.WriteToUDPAddrPort([]byte{0, 4, 0, 1}, to); err != nil {
		t.Fatal(err)
	}
}

// get loads a path by HTTP.
func (b *bootLab) get(t *testing.T, port uint16, path, agent string, want int) {
	t.Helper()
	conn := b.dial(t, port)
	defer conn.Close()
	request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nConnection: close\r\n\r\n",
		path, serviceIP, agent)
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil || !bytes.HasPrefix(answer, fmt.Appendf(nil, "HTTP/1.1 %d ", want)) {
		t.Fatalf("%s: got %.100q, %v", path, answer, err)
	}
}

func (b *bootLab) dial(t *testing.T, port uint16) (conn net.Conn) {
	t.Helper()
	b.client.Do(t, func() (err error) {
		conn, err = net.Dial("tcp", netip.AddrPortFrom(serviceIP, port).String())
		return err
	})
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

func (b *bootLab) syslog(t *testing.T, line string) {
	t.Helper()
	conn := b.listen(t, b.client, netip.AddrPortFrom(clientIP, 0))
	if _, err := conn.WriteToUDPAddrPort([]byte(line), netip.AddrPortFrom(serviceIP, 514)); err != nil {
		t.Fatal(err)
	}
}

// agent connects to Tink Server, and ends in order.
func (b *bootLab) agent(t *testing.T) {
	t.Helper()
	conn := b.dial(t, 42113)
	defer conn.Close()
	if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).CloseWrite()
	if _, err := io.ReadAll(conn); err != nil {
		t.Fatal(err)
	}
}

// forge speaks to stack-boots without the key.
func (b *bootLab) forge(t *testing.T) {
	t.Helper()
	var conn net.Conn
	b.pod.Do(t, func() (err error) {
		conn, err = net.Dial("tcp", bootsEvents)
		return err
	})
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, strings.Repeat("\x01", 4096)); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, conn) // until it is ended
}
