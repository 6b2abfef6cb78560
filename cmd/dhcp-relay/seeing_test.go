package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/tinkerbell/stack/internal/testwait"
	"github.com/tinkerbell/stack/pkg/frame"
)

// TestDebugLogsTransactions: one structured line for each side of a transaction.
func TestDebugLogsTransactions(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t, "LOG_LEVEL=debug")
	p.waitReady(t)
	l.broadcast(t, discover(t, dhcpv4.WithOption(dhcpv4.OptUserClass("iPXE")),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClientSystemArchitectureType, []byte{0, 7}))).ToBytes())
	request, from := receive(t, l.smee)
	send(t, l.smee, answer(t, request, dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(clientIP.AsSlice()),
		dhcpv4.WithOption(dhcpv4.OptBootFileName("ipxe.efi"))), from)
	l.hear(t)
	for _, want := range []string{
		`"msg":"relayed request"`, `"mac":"02:00:00:00:00:50"`, `"arch":"EFI x86-64"`, `"user_class":"iPXE"`,
		`"msg":"relayed reply"`, `"boot_file":"ipxe.efi"`, `"address":"192.0.2.50"`,
	} {
		testwait.Until(t, "a log with "+want, func() bool { return strings.Contains(p.log.String(), want) })
	}
}

// TestTrace writes a pcap of one client's packets.
func TestTrace(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	p := l.start(t)
	p.waitReady(t)
	other := discover(t).ToBytes()
	other[33]++ // its chaddr
	l.broadcast(t, other)
	receive(t, l.smee)
	l.offered(t, dhcpv4.MessageTypeOffer, dhcpv4.WithYourIP(clientIP.AsSlice()))
	if code, body := p.page("/trace?mac=nonsense"); code != 400 || !strings.Contains(body, "not a hardware address") {
		t.Errorf("got %d %q", code, body)
	}
	_, all := p.page("/trace")
	if got := len(packets(t, []byte(all))); got != 6 {
		t.Errorf("got %d packets of all machines, want 6", got)
	}
	code, body := p.page("/trace?mac=" + clientMAC.String())
	if code != 200 {
		t.Fatalf("got %d %s", code, body)
	}
	var ways []string
	for _, b := range packets(t, []byte(body)) {
		datagram, fault := frame.Parse(b, frame.Verify)
		if fault != frame.OK {
			t.Fatal(fault)
		}
		ways = append(ways, datagram.Src.String()+">"+datagram.Dst.String())
	}
	// With what the machine has sent in another's name, but not that as it was relayed.
	want := "0.0.0.0:68>255.255.255.255:67 0.0.0.0:68>255.255.255.255:67 10.244.0.10:67>10.244.0.11:67 " +
		"10.244.0.11:67>10.244.0.10:67 10.244.0.10:67>192.0.2.50:68"
	if got := strings.Join(ways, " "); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}

	// The subcommand, as in kubectl exec.
	var fetched, faults bytes.Buffer
	l.pod.Do(t, func() error {
		command := exec.Command("/proc/self/exe", "trace", "-mac", clientMAC.String())
		command.Env = append(os.Environ(), actAsRelay+"=1", "DHCP_RELAY_ADMIN_ADDRESS=:9067")
		command.Stdout, command.Stderr = &fetched, &faults
		return command.Run()
	})
	if got := len(packets(t, fetched.Bytes())); got != 5 {
		t.Errorf("got %d packets from the subcommand, want 5: %s", got, &faults)
	}
}

// TestTraceIsNotForPods: nor for a service mesh, which hands over other pods' requests from 127.0.0.6.
func TestTraceIsNotForPods(t *testing.T) {
	for peer, want := range map[string]int{
		"10.244.0.66:40000": 403, "127.0.0.6:40000": 403, "[2001:db8::66]:40000": 403, "": 403,
		"127.0.0.1:40000": 400, "[::1]:40000": 400, "[::ffff:127.0.0.1]:40000": 400, "10.244.0.10:40000": 400,
	} {
		q := httptest.NewRequest(http.MethodGet, "/trace?mac=none", http.NoBody)
		q = q.WithContext(context.WithValue(q.Context(), http.LocalAddrContextKey,
			&net.TCPAddr{IP: podIP.AsSlice(), Port: 9067}))
		q.RemoteAddr = peer
		w := httptest.NewRecorder()
		traceHandler().ServeHTTP(w, q)
		if w.Code != want {
			t.Errorf("from %q: got %d, want %d", peer, w.Code, want)
		}
	}
}

// packets reads a pcap file.
func packets(t *testing.T, b []byte) (found [][]byte) {
	t.Helper()
	if len(b) < 24 || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		t.Fatalf("not a pcap: %d bytes", len(b))
	}
	for b = b[24:]; len(b) > 0; {
		n := binary.LittleEndian.Uint32(b[8:])
		if at := time.Unix(int64(binary.LittleEndian.Uint32(b)), 0); time.Since(at).Abs() > time.Minute {
			t.Errorf("got time %v", at)
		}
		found = append(found, b[16:16+n])
		b = b[16+n:]
	}
	return found
}
